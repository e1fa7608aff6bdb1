"""No id of another tenant opens anything: every field of every RPC that takes an id is given one.

The fields come from the descriptors. A new RPC or field is attacked because it is in the contracts.
Both tenants have something of every kind, and the attacker calls as a client, as a run and, where
the contract lets services in, as each of these for its own tenant.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.protobuf.message import Message
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.security.mesh.conftest import Attacked
from tests.support.security.every_rpc import Answer, Served, ask
from tests.support.security.forms import IdField, form_of, id_fields, with_id
from tests.support.security.tenants import Filled, settled_rows, stored_rows

REFUSALS = {"NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED"}

CHOSEN = {"agent", "dispatch_key", "event_key", "file_name", "plugin", "request", "source", "tool_call"}
"""Kinds of ids that a caller chooses for its own things. Two tenants may choose the same."""

FILTERS = {
    "ListDeliveries": "the calls about a session or run of the tenant",
    "ListSets": "the sets of a session of the tenant",
    "ListSessions": "the children of a session of the tenant",
    "ListTranscripts": "the transcripts of the tenant after an id, whoever has it",
}
"""RPCs that answer with the rows of the tenant that fit the id: here with none, or with its own."""

ENDS_SOMETHING = tuple(
    "Archive Close Delete Discard Fail Finalize Kill Pause Purge Release Remove Revoke".split()  # noqa: SIM905
)
"""The beginnings of RPCs that come last: the others need what these end."""


@dataclass(frozen=True)
class Caller:
    """A caller of the attacking tenant. The contract of the RPC allows it, or does not."""

    label: str
    token: str
    is_allowed: bool
    is_service: bool = False


@dataclass
class Findings:
    """What is wrong: with forms that are no attack, and with answers."""

    weak: list[str]
    wrong: list[str]


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
    if answer.code == "ALREADY_EXISTS" and field is not None and field.kind in CHOSEN:
        return ""  # The attacker has used its own id of the same kind for something else.
    is_own = field is None or field.kind in CHOSEN or caller.is_service or rpc.method.name in FILTERS
    if answer.code == "OK" and is_own:
        return ""
    return f"{answer.code} {answer.reason or ''}, which is neither a refusal nor in CHOSEN or FILTERS"


async def attack(
    running: Attacked, rpc: Served, attacker: Filled, victim: Filled, findings: Findings
) -> None:
    """Call one RPC by each caller, with an id of the victim in one field after the other."""
    fields = id_fields(rpc.method.input_type)
    channel = running.channels[rpc.service]
    for caller in callers_of(rpc, attacker):

        async def answer_to(sent: Message, caller: Caller = caller) -> Answer:
            return await ask(channel, rpc.method, caller.token, sent.SerializeToString())

        attacks: list[tuple[IdField | None, Message]] = [(None, form_of(rpc.method, victim.ids))]
        if caller.is_allowed:
            own = form_of(rpc.method, attacker.ids)
            attacks = [(one, with_id(own, one, victim.ids[one.kind], attacker.ids)) for one in fields]
        for field, sent in attacks:
            answer = await answer_to(sent)
            if problem := wrong_with(rpc, caller, field, answer, sent, victim):
                where = ".".join(field.path) if field else "every field"
                findings.wrong.append(f"{rpc.name} by {caller.label}, {where}: {problem}")
        if caller.is_allowed:
            # The form is an attack only if it is refused for the id and for nothing else.
            control = await answer_to(own)
            if control.code in ("INVALID_ARGUMENT", "INTERNAL", "UNKNOWN"):
                findings.weak.append(f"{rpc.name} by {caller.label}: {control.text}")


@pytest.mark.timeout(300)
async def test_id_of_another_tenant_opens_nothing(
    running: Attacked, attacker: Filled, victim: Filled
) -> None:
    before = await settled_rows(victim)
    assert {name for name, rows in before.items() if rows}
    findings = Findings([], [])
    for rpc in sorted(running.rpcs, key=lambda one: (one.method.name.startswith(ENDS_SOMETHING), one.name)):
        await attack(running, rpc, attacker, victim, findings)
    assert findings.wrong == []
    assert findings.weak == [], "add to FORMS what these RPCs need, in tests/support/security/forms.py"
    after = await stored_rows(victim)
    assert {name: rows for name, rows in after.items() if rows != before[name]} == {}
    assert all(victim.ids[kind] in str(after) for kind in ("session", "run", "set_id", "blob_id", "file_id"))


async def test_every_kind_of_id_has_one_of_each_tenant(
    attacker: Filled, victim: Filled, running: Attacked
) -> None:
    kinds = {field.kind for rpc in running.rpcs for field in id_fields(rpc.method.input_type)}
    assert kinds - attacker.ids.keys() == set(), "fill_tenant in tests/support/security/tenants.py makes them"
    assert kinds - victim.ids.keys() == set()
    same = {kind for kind in kinds if attacker.ids[kind] == victim.ids[kind]}
    assert same <= {"job_kind", "keys"}
