"""A page token opens the next page of its own list, for its own caller, and nothing else.

The RPCs are all that have a `page_token`. A new one is attacked because it is in the contracts.
"""

import json
import random
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as hooks
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_service_pb2 as sessions
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1.compaction_service_pb2 import ExpandSummaryRequest
from spawnmesh_client.transcript_files import import_file
from spawnmesh_client.wire import WireMesh as Mesh
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.support.page_keys import page_key_from
from tests.support.security.every_rpc import Answer, RunningMesh, Served, ask
from tests.support.security.forms import form_of, id_fields, with_id
from tests.support.security.raw_calls import METHODS
from tests.support.security.tenants import Filled, fill_tenant, fill_webhook, put_schedule, start_operation
from tests.support.transcript.dialects import CLAUDE, file_of
from tests.support.waiting import eventually

TOKENED = sorted(name for name, one in METHODS.items() if "page_token" in one.input_type.fields_by_name)
PROVIDERS = "spawnmesh.model_router.v1.ModelRouterService.ListProviderHealth"
"""The mesh of these tests has one provider: this list has no second page of it."""
LISTS = [name for name in TOKENED if name != PROVIDERS]
EXPAND = "spawnmesh.transcript.v1.CompactionService.ExpandSummary"
WORDS = "marker"
FILTERS_OF = {
    "spawnmesh.session.v1.ApprovalService.ListApprovals": ("session_id", "agent_id"),
    "spawnmesh.hook.v1.HookService.ListDeliveries": ("session_id", "run_id", "plugin"),
    "spawnmesh.hook.v1.WebhookService.ListWebhookDeliveries": ("session_id",),
    "spawnmesh.attachment_blob.v1.AttachmentBlobService.ListSets": ("session_id",),
    "spawnmesh.session.v1.SessionService.ListSessions": ("request_id",),
    "spawnmesh.session.v1.SessionService.ListOutputSets": ("run_id", "request_id"),
    "spawnmesh.jobs.v1.JobService.ListJobs": ("tenant_id", "kind"),
}
"""Ids that the first page is not asked for, so that there is a second one."""


@dataclass
class Lists:
    """A tenant, and of each list the first request and the token that its answer has."""

    running: RunningMesh
    tenant: Filled
    tokens: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Message] = field(default_factory=dict)

    def caller(self, name: str) -> str:
        """Return the token of a caller that the contract allows."""
        kinds = policy_of(METHODS[name]).callers
        kind = next(one for one in (CallerKind.CLIENT, CallerKind.ADMIN, CallerKind.RUN) if one in kinds)
        return self.tenant.token(kind)

    def served(self, name: str) -> Served:
        """Return the list as the session service serves it, if several do; that of operations as the
        transcript service does.
        """
        found = [one for one in self.running.rpcs if one.method.full_name == name]
        wanted = "transcript" if name.endswith("ListOperations") else "session"
        return next((one for one in found if one.service == wanted), found[0])

    async def ask(self, name: str, /, page_token: str, caller: str = "", **changed: Any) -> Answer:
        """Ask for a page, again and again if these tests send too many calls in a second."""
        rpc = self.served(name)
        request = type(self.requests[name])()
        request.CopyFrom(self.requests[name])
        request.page_token = page_token  # type: ignore[attr-defined]
        for changed_field, value in changed.items():
            setattr(request, changed_field, value)
        channel = self.running.channels[rpc.service]
        asked = partial(ask, channel, rpc.method, caller or self.caller(name), request.SerializeToString())

        async def admitted() -> Answer | None:
            answer = await asked()
            return None if answer.reason is Reason.RATE_LIMITED else answer

        return await eventually(admitted)


def _first_request(name: str, tenant: Filled) -> Message:
    request = form_of(METHODS[name], tenant.ids)
    for filter_name in FILTERS_OF.get(name, ()):
        request.ClearField(filter_name)
    if "words" in request.DESCRIPTOR.fields_by_name:
        request.words = f"{WORDS}*"  # type: ignore[attr-defined]
    if name.endswith("ListJobs"):
        request.tenant_id = tenant.tenant_id  # type: ignore[attr-defined]
    request.page_size = 1  # type: ignore[attr-defined]
    return request


async def _with_second_pages(running: RunningMesh) -> Lists:
    """Fill a tenant until each list has a second page, and read the token of each."""
    lists = Lists(running, await fill_tenant(running.stack))
    tenant = lists.tenant
    async with tenant.connected(tenant.token(CallerKind.ADMIN)) as operator:
        await operator.create_tenant(f"t-{uuid4().hex[:12]}")
    async with tenant.connected(tenant.token(CallerKind.CLIENT)) as client:
        await client.put_agent(AgentProfile(agent_id="another"))
        peer = client.service("session")
        for number in range(2):
            await client.send(tenant.ids["session"], f"{tenant.marker} message {number}")
            spawn = sessions.SpawnSessionRequest(request_id=f"more-{number}", task=f"{tenant.marker} more")
            spawn.attachments.add(name="a.txt", content="a", encoding=1)
            await peer.unary(SessionServiceStub(peer.channel).SpawnSession, spawn, timeout_seconds=60)
        await start_operation(client, tenant.ids["session"], "another")
        await _register_observer(client)
        for name in (tenant.ids["webhook"], "another"):
            await fill_webhook(client, name)
        await put_schedule(client, "another", tenant.marker)
        summary = await _import_summary(client)
    async with await psycopg.AsyncConnection.connect(running.stack.superuser_dsn) as connection:
        for number in range(2):
            await connection.execute(
                "insert into session.jobs (tenant_id, kind, key, dead_time) values (%s, %s, %s, now())",
                (tenant.tenant_id, tenant.ids["job_kind"], f"dead-{number}"),
            )
            await connection.execute(
                "insert into model_router.spend_days values (%s, now(), %s, 'p/one', 1, 1, 1, 0, 0, 1)",
                (tenant.tenant_id, f"agent-{number}"),
            )
            await connection.execute(
                """
                insert into model_router.failure_hours
                values (%s, date_trunc('hour', now(), 'UTC'), %s, 'TIMEOUT', 1, 0, 1)
                """,
                (tenant.tenant_id, f"p/{number}"),
            )
            await connection.execute(
                """
                insert into session.approvals (tenant_id, approval_id, session_id, run_id, agent_id,
                                               ancestor_ids, tool_name, on_expiry, create_time, expire_time)
                values (%s, %s, %s, %s, %s, '{}', 'pay', 'DENY', now(), now())
                """,
                (
                    tenant.tenant_id, new_id(IdKind.APPROVAL), tenant.ids["session"], tenant.ids["run"],
                    tenant.ids["agent"],
                ),
            )  # fmt: skip
    lists.requests = {name: _first_request(name, tenant) for name in TOKENED}
    lists.requests[EXPAND] = summary
    for name in LISTS:
        lists.tokens[name] = await eventually(lambda name=name: _second_page(lists, name))
    return lists


async def _register_observer(client: Mesh) -> None:
    plugin = hooks.Plugin(name="observer", endpoint="grpc://127.0.0.1:1")
    plugin.hooks.extend((events.HOOK_KIND_LLM_INPUT, events.HOOK_KIND_LLM_OUTPUT))
    request = hooks.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
    peer = client.service("hook")
    await peer.unary(HookServiceStub(peer.channel).UpdatePlugin, request, timeout_seconds=60)


async def _import_summary(client: Mesh) -> ExpandSummaryRequest:
    """Import a transcript with a summary of several messages, and return the request for these."""
    session_id = new_id(IdKind.SESSION)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "session.jsonl")
        file.write_bytes(file_of(CLAUDE))
        await import_file(client.service("transcript"), file, session_id)
    entries = [entry async for entry in client.transcript(session_id)]
    [summary] = [entry for entry in entries if entry.body.HasField("compaction")]
    return ExpandSummaryRequest(session_id=session_id, entry_id=summary.entry_id, page_size=1)


async def _second_page(lists: Lists, name: str) -> str:
    """Return the token of the second page; empty until there is one.

    Events of the audit log are listed about a second after their calls. If a list stays empty, fill
    the tenant so that it has a second page.
    """
    answer = await lists.ask(name, "")
    assert answer.code == "OK", (name, answer)
    return str(_read(name, answer).next_page_token)


def _read(name: str, answer: Answer) -> Any:
    return message_factory.GetMessageClass(METHODS[name].output_type).FromString(answer.messages[0])


@pytest.fixture(scope="module")
async def own(running: RunningMesh) -> Lists:
    return await _with_second_pages(running)


@pytest.fixture(scope="module")
async def foreign(running: RunningMesh) -> Lists:
    return await _with_second_pages(running)


def _forged(token: str, rng: random.Random) -> Iterator[str]:
    """Yield texts that are nearly the token, and texts that are none."""
    yield from (
        "a",
        "A" * 40,
        "=",
        "null",
        "%",
        "'",
        "../x",
        "ses_" + "0" * 26,
        "\u202e",
        " " + token,
        token + "A",
    )
    yield rng.randbytes(30).hex()
    for _ in range(20):
        at = rng.randrange(len(token))
        yield token[:at]  # The empty one is asked for as the first page.
        yield token[:at] + chr(ord(token[at]) ^ 1 << rng.randrange(6)) + token[at + 1 :]
        yield token[at:] + token[:at]


def _is_refused(answer: Answer) -> bool:
    """Return whether the token was refused, or the tenant that the request names before it."""
    refused = (answer.code, answer.reason) == ("INVALID_ARGUMENT", Reason.INVALID_REQUEST)
    return refused and answer.fields in (("page_token",), ("tenant_id",))


@pytest.mark.parametrize("name", LISTS)
async def test_own_token_opens_the_next_page(own: Lists, name: str) -> None:
    first, second = await own.ask(name, ""), await own.ask(name, own.tokens[name])
    assert second.code == "OK"
    assert second.messages != first.messages
    larger = await own.ask(name, own.tokens[name], page_size=2)
    assert larger.code == "OK"


@pytest.mark.parametrize("name", LISTS)
async def test_token_that_was_changed_is_refused(own: Lists, name: str) -> None:
    token = own.tokens[name]
    forged = {one for one in _forged(token, random.Random(name)) if one not in ("", token)}
    answers = {one: await own.ask(name, one) for one in forged}
    assert [one for one, answer in answers.items() if not _is_refused(answer)] == []


@pytest.mark.parametrize("name", LISTS)
async def test_token_of_another_list_is_refused(own: Lists, name: str) -> None:
    others = {other: token for other, token in own.tokens.items() if other != name}
    answers = {other: await own.ask(name, token) for other, token in others.items()}
    assert [other for other, answer in answers.items() if not _is_refused(answer)] == []


@pytest.mark.parametrize("name", LISTS)
async def test_token_of_another_tenant_is_refused(own: Lists, foreign: Lists, name: str) -> None:
    """An administrator has no tenant: the filter for one is part of its list."""
    if policy_of(METHODS[name]).callers == {CallerKind.ADMIN} and name not in FILTERS_OF:
        return
    assert foreign.tokens[name] != own.tokens[name]
    assert _is_refused(await own.ask(name, foreign.tokens[name]))
    assert _is_refused(await foreign.ask(name, own.tokens[name]))
    if CallerKind.CLIENT in policy_of(METHODS[name]).callers:  # Nor with the same request.
        answer = await foreign.ask(name, foreign.tokens[name], own.caller(name))
        assert _is_refused(answer) or answer.code == "NOT_FOUND"


@pytest.mark.parametrize("name", LISTS)
async def test_token_of_other_filters_is_refused(own: Lists, name: str) -> None:
    request = own.requests[name]
    for one in id_fields(METHODS[name].input_type):
        changed = with_id(request, one, own.tenant.ids[one.kind], own.tenant.ids)
        if changed == request:
            changed = with_id(request, one, own.tenant.ids.get(f"child_{one.kind}", "other"), own.tenant.ids)
        values = {one.path[0]: getattr(changed, one.path[0])}
        if len(one.path) == 1 and not isinstance(values[one.path[0]], Message):
            assert _is_refused(await own.ask(name, own.tokens[name], **values)), one
    flags = [one.name for one in METHODS[name].input_type.fields if one.type == one.TYPE_BOOL]
    for flag in flags:
        answer = await own.ask(name, own.tokens[name], **{flag: not getattr(request, flag)})
        assert _is_refused(answer), flag


def _position(token: str) -> list[Any]:
    """Return the position that a token shows to everybody."""
    _, *position = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4))[16:])
    return list(position)


def _made(own: Lists, name: str, service: str, age: timedelta) -> dict[tuple[str, ...], str]:
    """Return the token of the second page for each caller that it may be bound to, signed with the
    key of a service.
    """
    request: Any = own.requests[name]
    tenant_id, session_id = own.tenant.tenant_id, own.tenant.ids["session"]
    callers = ((), (tenant_id,), (tenant_id, ""), (tenant_id, session_id), ("", ""))
    with page_key_from(own.running.stack.keys, service):
        return {
            caller: page_token(_position(own.tokens[name]), request, *caller, clock=lambda: utc_now() - age)
            for caller in callers
        }


@pytest.mark.parametrize("name", LISTS)
async def test_token_that_the_service_did_not_sign_is_refused(own: Lists, name: str) -> None:
    """Only with the key of the service is a token of one of the callers good."""
    made = {
        service: _made(own, name, service, timedelta())
        for service in (own.served(name).service, "client", "runner")
    }
    for service, tokens in made.items():
        answers = [await own.ask(name, token) for token in tokens.values()]
        good = [answer for answer in answers if answer.code == "OK"]
        assert len(good) == (service == own.served(name).service), service
        assert all(_is_refused(answer) for answer in answers if answer not in good), service


@pytest.mark.parametrize("name", LISTS)
async def test_token_of_yesterday_is_refused(own: Lists, name: str) -> None:
    answers = [
        await own.ask(name, token)
        for token in _made(own, name, own.served(name).service, timedelta(hours=25)).values()
    ]
    assert [answer for answer in answers if not _is_refused(answer)] == []
    assert [answer.fields for answer in answers if "expired" in answer.text] == [("page_token",)]
