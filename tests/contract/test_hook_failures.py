"""Plugins that fail, over the real wire: slow, dead, garbage, huge, of the wrong type."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handlers
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.breaker import FAILURES_TO_OPEN

from tests.contract.hook_asking import ASKED, ask
from tests.contract.hook_fixtures import (
    ALLOW,
    CLOSED,
    CONTINUE,
    DEAD_ENDPOINT,
    FINALIZE,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    open_mesh,
    refused,
    revise,
)

SHORT = Duration(nanos=600_000_000)
SERVICE = "spawnmesh.hook.v1.HookHandlerService"
HANDLERS = (
    "HandleBeforeSpawn",
    "HandleBeforeAgentFinalize",
    "HandleBeforeModelResolve",
    "HandleBeforePromptBuild",
    "HandleBeforeToolCall",
    "HandleDeliveryTarget",
    "HandleBeforeCompaction",
    "HandleObservedEvent",
)
Answer = Callable[[], Awaitable[bytes]]


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    return mesh.tenant(await mesh.replica())


class Raw:
    """Answers every hook with these bytes, whatever they are."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.call_count = 0
        self.cancelled = asyncio.Event()

    async def handle(self, _request: bytes, _context: Any) -> bytes:
        self.call_count += 1
        try:
            return await self.answer()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.fixture
async def raw() -> AsyncIterator[Callable[[Answer], Awaitable[tuple[Raw, str]]]]:
    async with AsyncExitStack() as stack:

        async def opened(answer: Answer) -> tuple[Raw, str]:
            plugin = Raw(answer)
            return plugin, await stack.enter_async_context(_served(plugin))

        yield opened


@asynccontextmanager
async def _served(plugin: Raw) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    method = grpc.unary_unary_rpc_method_handler(plugin.handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(HANDLERS, method)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def garbage() -> bytes:
    return b"\xff" * 50


async def nothing() -> bytes:
    return b""


async def wrong_type() -> bytes:
    return pb.Plugin(name="not-a-decision", priority=7).SerializeToString()


async def huge() -> bytes:
    return decisions.FinalizeDecision(finalize=decisions.Finalize(reason="x" * 3_000_000)).SerializeToString()


async def over_the_transports_limit() -> bytes:
    return b"x" * (17 * 1024 * 1024)


async def crash() -> bytes:
    raise RuntimeError("/home/secret/plugin.py broke")


async def hang() -> bytes:
    await asyncio.Event().wait()
    return b""


FAILING = [garbage, nothing, wrong_type, huge, over_the_transports_limit, crash, hang]


async def ask_all(tenant: Tenant) -> list[Any]:
    """What is decided at every hook that is asked and not only told: what was answered, or the refusal."""
    return list(await asyncio.gather(*(ask(tenant, hook) for hook in ASKED), return_exceptions=True))


async def check_policies(tenant: Tenant, endpoint: str) -> list[str]:
    """Registers the failing plugin for each hook, as OPEN, then as CLOSED, and asks it; the errors in the log."""
    for hook in ASKED:
        await tenant.register(f"bad-{hook}", endpoint, hook, policy=OPEN, timeout=SHORT)
    answers = await ask_all(tenant)
    assert [getattr(answer, "decision", answer) for answer in answers] == list(ASKED.values())
    for hook in ASKED:
        await tenant.register(f"bad-{hook}", endpoint, hook, policy=CLOSED, timeout=SHORT)
    refusals = await ask_all(tenant)
    assert [getattr(refusal, "reason", refusal) for refusal in refusals] == [Reason.PLUGIN_FAILED] * len(ASKED)
    assert "secret" not in str(refusals)
    rows = await tenant.deliveries()
    assert sorted((row.hook, row.decision) for row in rows) == sorted((hook, "failed") for hook in (*ASKED, *ASKED))
    assert all(row.error and "secret" not in row.error for row in rows)
    assert max(row.latency.ToTimedelta().total_seconds() for row in rows) < 5
    return [row.error for row in rows]


@pytest.mark.parametrize("answer", FAILING, ids=lambda answer: answer.__name__)
async def test_an_open_plugin_that_fails_has_no_objection_and_a_closed_one_decides(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]], answer: Answer
) -> None:
    _, endpoint = await raw(answer)
    await check_policies(tenant, endpoint)


@asynccontextmanager
async def dripping(port: int, plugin: Raw) -> AsyncIterator[str]:
    """Leads to the port; once the plugin was called, what comes back comes byte by byte."""

    async def back(answers: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        while data := await answers.read(65_536):
            step = 1 if plugin.call_count else len(data)
            for start in range(0, len(data), step):
                caller.write(data[start : start + step])
                await caller.drain()  # Which ends it with its caller.
                await asyncio.sleep(0.05 if plugin.call_count else 0)

    async def forth(caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while data := await caller.read(65_536):
            answers.write(data)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(back(answers, writer), forth(reader, questions), return_exceptions=True)
        finally:
            writer.close()
            questions.close()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with server:
        yield f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_plugin_whose_answer_trickles_in_has_its_time_and_no_more(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    async def much() -> bytes:
        return handlers.HandleBeforeSpawnResponse(decision=ALLOW).SerializeToString() * 100

    plugin, endpoint = await raw(much)
    async with dripping(int(endpoint.rpartition(":")[2]), plugin) as slow:
        errors = await check_policies(tenant, slow)
    assert plugin.call_count
    assert set(errors) == {"no answer within 0.6 s"}


async def test_an_endpoint_where_nobody_is(tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, FINALIZE, policy=OPEN)
    assert (await tenant.draft("k")).decision == CONTINUE


@pytest.mark.parametrize("reason", ["a\0b", "\0", "", " \n", "x" * 5000])
async def test_a_reason_that_cannot_be_kept_is_a_failure(mesh: HookMesh, tenant: Tenant, reason: str) -> None:
    plugin = await mesh.plugin(revise(reason))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.draft("k")
    assert await tenant.log() == [("a", "failed")]


async def test_a_dead_plugin_costs_its_time_out_a_few_times_and_then_nothing(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    plugin, endpoint = await raw(hang)
    await tenant.register("dead", endpoint, SPAWN, policy=OPEN, timeout=SHORT)
    for _ in range(FAILURES_TO_OPEN + 3):
        assert (await tenant.spawn()).decision == ALLOW
    assert plugin.call_count == FAILURES_TO_OPEN
    assert [decision for _, decision in await tenant.log()] == ["failed"] * 3 + ["skipped"] * 3
    skipped = (await tenant.deliveries())[0]
    assert skipped.latency.ToMilliseconds() == 0
    assert "failed too often" in skipped.error


async def test_a_plugin_that_is_cut_off_and_closed_still_decides(tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN, policy=CLOSED)
    for _ in range(FAILURES_TO_OPEN + 1):
        with refused(Reason.PLUGIN_FAILED):
            await tenant.spawn()
    assert (await tenant.log())[-1] == ("dead", "skipped")


async def test_a_plugin_that_is_registered_anew_or_resumed_is_called_at_once(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin(ALLOW)
    await tenant.register("a", DEAD_ENDPOINT, SPAWN, policy=OPEN)
    for _ in range(FAILURES_TO_OPEN + 1):
        await tenant.spawn()
    await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="a"))
    await tenant.spawn()
    assert (await tenant.log())[-1] == ("a", "failed")
    await tenant.register("a", plugin.endpoint, SPAWN)
    await tenant.spawn()
    assert (await tenant.log())[-1] == ("a", "allow")


async def test_each_replica_finds_out_by_itself_and_a_resumption_counts_at_all_of_them(
    mesh: HookMesh, tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    plugin, endpoint = await raw(crash)
    replicas = [tenant, tenant.on(await mesh.replica())]
    await tenant.register("dead", endpoint, SPAWN, policy=OPEN)
    for asked in (1, 2):
        for _ in range(FAILURES_TO_OPEN + 2):
            await replicas[asked - 1].spawn()
        assert plugin.call_count == FAILURES_TO_OPEN * asked
    await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="dead"))
    for more, replica in enumerate(replicas, start=1):
        async with asyncio.timeout(10):
            while plugin.call_count < FAILURES_TO_OPEN * 2 + more:
                await replica.spawn()


async def test_the_breaker_of_one_tenant_is_not_anothers(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    other = mesh.tenant(await mesh.replica())
    await tenant.register("a", DEAD_ENDPOINT, SPAWN, policy=OPEN)
    for _ in range(FAILURES_TO_OPEN):
        await tenant.spawn()
    plugin.says(ALLOW)
    await other.register("a", plugin.endpoint, SPAWN)
    await other.spawn()
    assert await other.log() == [("a", "allow")]


async def test_the_whole_dispatch_fits_the_callers_deadline(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    """All hooks side by side: of a deadline that is this long a second is kept back, which a slow disk does not use up."""
    _, endpoint = await raw(hang)
    for hook in ASKED:
        for name in ("a", "b", "c"):
            plugin = f"{name}-{HookKind.Name(hook).lower().replace('_', '-')}"
            await tenant.register(
                plugin, endpoint, hook, policy=OPEN, timeout=Duration(seconds=60), max_concurrent_calls=32
            )
    answers = await asyncio.gather(*(ask(tenant, hook, timeout_seconds=6.0) for hook in ASKED))
    assert [answer.decision for answer in answers] == list(ASKED.values())
    assert [decision for _, decision in await tenant.log()] == ["failed"] * 3 * len(ASKED)


@pytest.mark.parametrize("hook", ASKED, ids=HookKind.Name)
async def test_cancellation_reaches_the_handler(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]], hook: "HookKind.ValueType"
) -> None:
    asked = asyncio.Event()

    async def hang_when_asked() -> bytes:
        asked.set()
        return await hang()

    plugin, endpoint = await raw(hang_when_asked)
    await tenant.register("a", endpoint, hook)
    call = asyncio.create_task(ask(tenant, hook))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(5):
        await plugin.cancelled.wait()


async def test_no_more_calls_at_a_time_than_the_plugin_takes(mesh: HookMesh, tenant: Tenant) -> None:
    plugin = await mesh.plugin()
    at_once, most = 0, 0

    async def count(_event: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        return ALLOW

    plugin.decide = count
    await tenant.register("a", plugin.endpoint, SPAWN, max_concurrent_calls=2)
    await asyncio.gather(*(tenant.spawn(session_id=f"ses_{number}") for number in range(8)))
    assert most == 2


async def test_a_call_that_finds_no_slot_in_time_fails_and_is_not_held_against_the_plugin(
    mesh: HookMesh, tenant: Tenant
) -> None:
    plugin = await mesh.plugin()
    held, hold = asyncio.Event(), asyncio.Event()

    async def stay(_event: Any) -> Any:
        held.set()
        await hold.wait()
        return ALLOW

    plugin.decide = stay
    await tenant.register("a", plugin.endpoint, SPAWN, policy=OPEN, max_concurrent_calls=1, timeout=Duration(seconds=8))
    first = asyncio.create_task(tenant.spawn())
    await held.wait()
    for _ in range(FAILURES_TO_OPEN):
        await tenant.spawn(timeout_seconds=1.5)
    hold.set()
    await first
    await tenant.spawn()
    decisions_made = [decision for _, decision in await tenant.log()]
    assert sorted(decisions_made) == ["allow", "allow", "failed", "failed", "failed"]
