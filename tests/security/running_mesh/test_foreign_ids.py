"""No id of another tenant opens anything: every field of every RPC that takes an id is given one.

The fields come from the descriptors. A new RPC or field is attacked because it is in the contracts.
Both tenants have something of every kind, and the attacker calls as a client, as a run and, where
the contract lets services in, as each of these for its own tenant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from google.protobuf.message import Message
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import UploadFileResponse
from spawnmesh.attachment_blob.v1.upload_pb2 import UPLOAD_STATE_COMPLETE
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.support.security.every_rpc import Answer, RunningMesh, Served, ask
from tests.support.security.forms import IdField, form_of, id_fields, with_id
from tests.support.security.tenants import Filled, settled_rows, stored_rows

REFUSALS = {"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}

CHOSEN = {"agent", "event_key", "file_name", "plugin", "request", "source", "tool_call", "webhook"}
"""Kinds of ids that a caller chooses for its own things. Two tenants may choose the same."""

HARMLESS = {
    "AcknowledgeInbox keys": "keys that its own session does not have are ignored",
    "ExplainRoute session": "a label",
    "Generate session": "a label",
    "ImportTranscript session": "it names a new transcript of its own tenant",
    "ListApprovals session": "a filter of its own rows",
    "ListDeliveries run": "a filter of its own rows",
    "ListDeliveries session": "a filter of its own rows",
    "ListWebhookDeliveries session": "a filter of its own rows",
    "ListOutputSets run": "a filter of its own rows",
    "ListSets session": "a filter of its own rows",
    "RequestApproval entry": "a name of a call of its own run",
    "RevokeToken token_id": "it is revoked in its own tenant alone",
    "TakeDecision entry": "no approval of its own run has this name",
    "UploadFile sha256": "the bytes must be sent all the same",
    "UploadFile upload_id": "it names a new upload of its own",
    "VerifyTranscript chain_hash": "a mismatch of its own transcript",
    "VerifyTranscript incarnation": "a mismatch of its own transcript",
}
"""RPCs that may answer an id of another tenant, by the kind of the id, and what they do with it."""

NEW = {
    "CreateTranscript": ("session", IdKind.SESSION),
    "ImportTranscript": ("session", IdKind.SESSION),
    "PutBlob": ("blob_id", IdKind.BLOB),
    "StageSet": ("set_id", IdKind.ATTACHMENT_SET),
    "UploadFile": ("upload_id", IdKind.UPLOAD),
}
"""RPCs that create what their caller names, and so need a new id for each call."""

LATER = ("Archive", "Close", "Discard", "Pause", "Release", "Remove", "Revoke", "Upload")
LAST = ("Delete", "Fail", "Finalize", "Kill", "Purge", "ReleaseRun", "RequestApproval")
"""The beginnings of RPCs that end what others need, or after which the attacker has the id, too."""


@dataclass(frozen=True)
class Caller:
    """A caller of the attacking tenant. The contract of the RPC allows it, or does not."""

    label: str
    token: str
    is_allowed: bool
    is_service: bool = False


def callers_of(rpc: Served, attacker: Filled) -> Iterator[Caller]:
    policy = policy_of(rpc.method)
    for kind in (CallerKind.CLIENT, CallerKind.RUN):
        yield Caller(kind.value, attacker.token(kind), kind in policy.callers)
    for service in sorted(policy.services):
        token = attacker.token(CallerKind.SERVICE, service)
        yield Caller(service, token, not policy.without_tenant, is_service=True)


def wrong_with(
    rpc: Served, caller: Caller, field: IdField | None, answer: Answer, sent: Message, victim: Filled
) -> str:
    """Return what the answer gives away; empty if nothing."""
    if victim.marker.encode() in answer.seen:
        return "the answer has content of the other tenant"
    data = sent.SerializeToString()
    known = [kind for kind, one in victim.ids.items() if len(one) > 12 and one.encode() not in data]
    if leaked := [kind for kind in known if victim.ids[kind].encode() in answer.seen]:
        return f"the answer has ids of the other tenant: {leaked}"
    if not caller.is_allowed:
        return "" if answer.code == "PERMISSION_DENIED" else f"{answer.code} for a caller that is not allowed"
    if answer.code in REFUSALS:
        return "" if answer.reason else f"{answer.code} without a reason"
    if answer.code == "OK" and is_harmless(rpc, caller, field, answer):
        return ""
    return f"{answer.code} {answer.reason or ''}, which is neither a refusal nor in CHOSEN or HARMLESS"


def is_harmless(rpc: Served, caller: Caller, field: IdField | None, answer: Answer) -> bool:
    if field is None or caller.is_service:  # A service names new things of the tenant of its token.
        return True
    if (rpc.method.name, field.kind) == ("UploadFile", "sha256"):
        upload = UploadFileResponse.FromString(answer.messages[0]).upload
        return upload.state != UPLOAD_STATE_COMPLETE and upload.durable_bytes == 0
    return field.kind in CHOSEN or f"{rpc.method.name} {field.kind}" in HARMLESS


def own_ids(rpc: Served, attacker: Filled) -> dict[str, str]:
    """Return the ids of the attacker, with new ones for what the call creates."""
    ids = {**attacker.ids, "request": uuid4().hex}
    if rpc.method.name in NEW:
        kind, prefix = NEW[rpc.method.name]
        ids[kind] = new_id(prefix)
    return ids


def attacks_of(
    rpc: Served, caller: Caller, attacker: Filled, victim: Filled
) -> Iterator[tuple[IdField | None, Message]]:
    """Yield requests with ids of the victim: in all fields, or in one field after the other."""
    if not caller.is_allowed:
        yield None, form_of(rpc.method, victim.ids)
        return
    for field in id_fields(rpc.method.input_type):
        ids = own_ids(rpc, attacker)
        yield field, with_id(form_of(rpc.method, ids), field, victim.ids[field.kind], ids)


async def attack(
    running: RunningMesh, rpc: Served, caller: Caller, attacker: Filled, victim: Filled
) -> tuple[list[str], str]:
    """Return what is wrong with the answers, and why the form is no attack, or nothing."""

    async def answer_to(sent: Message) -> Answer:
        return await ask(running.channels[rpc.service], rpc.method, caller.token, sent.SerializeToString())

    wrong = []
    for field, sent in attacks_of(rpc, caller, attacker, victim):
        answer = await answer_to(sent)
        if problem := wrong_with(rpc, caller, field, answer, sent, victim):
            where = ".".join(field.path) if field else "every field"
            wrong.append(f"{rpc.name} by {caller.label}, {where}: {problem}")
    if not caller.is_allowed:
        return wrong, ""
    # The form is an attack only if it is refused for the foreign id and for nothing else.
    control = await answer_to(form_of(rpc.method, own_ids(rpc, attacker)))
    is_weak = control.code in ("INVALID_ARGUMENT", "INTERNAL", "UNKNOWN")
    return wrong, f"{rpc.name} by {caller.label}: {control.text}" if is_weak else ""


def turn_of(rpc: Served) -> tuple[bool, bool, str]:
    name = rpc.method.name
    return name.startswith(LAST), name.startswith(LATER), rpc.name


@pytest.mark.timeout(300)
async def test_id_of_another_tenant_opens_nothing(
    running: RunningMesh, attacker: Filled, victim: Filled
) -> None:
    before = await settled_rows(victim)
    assert {name for name, rows in before.items() if rows}
    wrong: list[str] = []
    weak: list[str] = []
    rpcs = sorted(running.rpcs, key=turn_of)
    for is_allowed in (False, True):
        for rpc in rpcs:
            callers = [one for one in callers_of(rpc, attacker) if one.is_allowed is is_allowed]
            found = [await attack(running, rpc, caller, attacker, victim) for caller in callers]
            wrong += [problem for problems, _ in found for problem in problems]
            if found and all(why for _, why in found):
                weak += [why for _, why in found]
    assert not wrong, "\n".join(wrong)
    assert not weak, "\n".join(["add to FORMS, in tests/support/security/forms.py, what these need:", *weak])
    after = await stored_rows(victim)
    assert {name: rows for name, rows in after.items() if rows != before[name]} == {}
    assert all(victim.ids[kind] in str(after) for kind in ("session", "run", "set_id", "blob_id"))


async def test_every_kind_of_id_has_one_of_each_tenant(
    attacker: Filled, victim: Filled, running: RunningMesh
) -> None:
    kinds = {field.kind for rpc in running.rpcs for field in id_fields(rpc.method.input_type)}
    assert kinds - attacker.ids.keys() == set(), "fill_tenant in tests/support/security/tenants.py makes them"
    assert kinds - victim.ids.keys() == set()
    same = {kind for kind in kinds if attacker.ids[kind] == victim.ids[kind]}
    assert same <= {"job_kind", "keys"}
