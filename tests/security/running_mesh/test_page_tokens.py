"""A page token opens the next page of its own list, for its own caller, and nothing else.

The RPCs are all that have a `page_token`. A new one is attacked because it is in the contracts.
"""

import json
import random
import tempfile
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.page_tokens import page_token
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

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


WRONG_PARTS: tuple[Any, ...] = (None, True, 1.5, [], {}, "a\0b", 2**63, -(2**63) - 1, 10**40)
"""Parts that no list has, whatever its types."""

ODD_PARTS: tuple[Any, ...] = (
    *("", "x", "~", "1", "-1", "zz", "ab", "\u202e", "\U0010ffff", "\n", "%s", "x" * 300, "x" * 5000),
    *("now", "infinity", "2026-01-01", "2026-01-01T00:00:00", "24:00", "2026-02-30T00:00:00+00:00"),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00+01:00"),
    *("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999+00:00"),
    *(0, 1, -1, 2**31, 2**63 - 1, -(2**63)),
)
"""Parts that may have the type that a list states."""


def _known_position(lists: Lists, name: str) -> list[Any]:
    """Return the position of the second page."""
    if name == PROVIDERS:
        return ["a"]
    token = lists.tokens[name]
    found: list[Any] = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4))[12:])
    return found


def _forged_with_digest(lists: Lists, name: str, position: list[Any]) -> str:
    """Return the token that the list would give for the position."""
    request: Any = lists.requests[name]
    tenant_id = lists.tenant.tenant_id
    if name == PROVIDERS:
        return page_token(position, request, tenant_id)
    known, token = _known_position(lists, name), lists.tokens[name]
    bound = [
        caller
        for caller in ((), (tenant_id,), (tenant_id, ""), (tenant_id, lists.tenant.ids["session"]), ("", ""))
        if page_token(known, request, *caller) == token
    ]
    assert len(bound) == 1, f"the digest of {name} is bound to something else"
    return page_token(position, request, *bound[0])


def _raw_token(text: str) -> str:
    """Return a token with this JSON and without a valid digest."""
    return urlsafe_b64encode(bytes(12) + text.encode()).decode().rstrip("=")


def _of_other_types(known: list[Any]) -> Iterator[list[Any]]:
    yield from ([], known[:-1], [*known, "x"], [*known, 1], [known], [None] * len(known))
    for place, part in enumerate(known):
        for other in (*WRONG_PARTS, 7 if isinstance(part, str) else "7"):
            yield [*known[:place], other, *known[place + 1 :]]


@pytest.mark.parametrize("name", TOKENED)
async def test_position_of_other_types_is_refused(own: Lists, name: str) -> None:
    """Anyone can compute the digest. These tokens have the right one, but for the last two."""
    known = _known_position(own, name)
    assert (await own.ask(name, _forged_with_digest(own, name, known))).code == "OK"
    tokens = {
        json.dumps(position)[:100]: _forged_with_digest(own, name, position)
        for position in _of_other_types(known)
    }
    for text in (json.dumps(["\ud800", *known[1:]]), '["\\ud800"]'):
        tokens[text] = _raw_token(text)
    answers = {position: await own.ask(name, token) for position, token in tokens.items()}
    assert {one: answer for one, answer in answers.items() if not _is_refused(answer)} == {}


@pytest.mark.parametrize("name", TOKENED)
async def test_any_position_of_the_right_types_is_answered(own: Lists, name: str) -> None:
    """The position may be any: the answer is a page or a refusal."""
    known = _known_position(own, name)
    unexpected = {}
    for place in range(len(known)):
        for part in ODD_PARTS:
            position = [*known[:place], part, *known[place + 1 :]]
            answer = await own.ask(name, _forged_with_digest(own, name, position))
            if answer.code != "OK" and not _is_refused(answer):
                unexpected[json.dumps(position)[:100]] = answer
    assert unexpected == {}
