"""Plugins that fail: slow, dead, with garbage, too large, or of the wrong type."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handlers
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.hook.v1.plugin_limits_pb2 import PluginLimits
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.circuit_breaker import FAILURES_TO_OPEN
from spawnmesh_runtime.peers import Peer

from tests.support.hook.decisions import decision_of
from tests.support.hook.dispatching import DEFAULT_ANSWERS, dispatch
from tests.support.hook.fixtures import (
    CLOSED,
    DEAD_ENDPOINT,
    FINALIZE,
    OPEN,
    SPAWN,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, CONTINUE, revise

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


class Raw:
    """Answers every hook with the given bytes."""

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
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(HANDLERS, method)),)
    )
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


async def dispatch_all(tenant: Tenant) -> list[Any]:
    """Dispatch every hook that has an answer. Return the answers and errors."""
    return list(
        await asyncio.gather(*(dispatch(tenant, hook) for hook in DEFAULT_ANSWERS), return_exceptions=True)
    )


async def check_policies(tenant: Tenant, endpoint: str) -> list[str]:
    """Register the failing plugin for each hook, as OPEN, then as CLOSED.

    Return the logged errors.
    """
    for hook in DEFAULT_ANSWERS:
        await tenant.register(f"bad-{hook}", endpoint, hook, policy=OPEN, timeout=SHORT)
    answers = await dispatch_all(tenant)
    assert [getattr(answer, "decision", answer) for answer in answers] == list(DEFAULT_ANSWERS.values())
    for hook in DEFAULT_ANSWERS:
        await tenant.register(f"bad-{hook}", endpoint, hook, policy=CLOSED, timeout=SHORT)
    refusals = await dispatch_all(tenant)
    assert [getattr(refusal, "reason", refusal) for refusal in refusals] == [Reason.PLUGIN_FAILED] * len(
        DEFAULT_ANSWERS
    )
    assert "secret" not in str(refusals)
    rows = await tenant.deliveries()
    assert sorted((row.hook, decision_of(row)) for row in rows) == sorted(
        (hook, "failed") for hook in (*DEFAULT_ANSWERS, *DEFAULT_ANSWERS)
    )
    assert all(row.error and "secret" not in row.error for row in rows)
    return [row.error for row in rows]


@pytest.mark.parametrize("answer", FAILING, ids=lambda answer: answer.__name__)
async def test_a_failing_plugin_is_skipped_if_open_and_decides_if_closed(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]], answer: Answer
) -> None:
    _, endpoint = await raw(answer)
    await check_policies(tenant, endpoint)


@asynccontextmanager
async def dripping(port: int, plugin: Raw) -> AsyncIterator[str]:
    """Proxy the port. Once the plugin is called, pass its answer on byte by byte."""

    async def back(answers: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        while data := await answers.read(65_536):
            step = 1 if plugin.call_count else len(data)
            for start in range(0, len(data), step):
                caller.write(data[start : start + step])
                await caller.drain()  # Raises once the caller is gone.
                await asyncio.sleep(0.05 if plugin.call_count else 0)

    async def forth(caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while data := await caller.read(65_536):
            answers.write(data)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(back(answers, writer), forth(reader, requests), return_exceptions=True)
        finally:
            writer.close()
            requests.close()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with server:
        yield f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_answer_that_trickles_in_times_out(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    async def much() -> bytes:
        return handlers.HandleBeforeSpawnResponse(decision=ALLOW).SerializeToString() * 100

    plugin, endpoint = await raw(much)
    async with dripping(int(endpoint.rpartition(":")[2]), plugin) as slow:
        errors = await check_policies(tenant, slow)
    assert plugin.call_count
    assert set(errors) == {"no answer within 0.6 s"}


async def test_an_endpoint_without_a_server(tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, FINALIZE, policy=OPEN)
    assert (await tenant.draft("k")).decision == CONTINUE


@pytest.mark.parametrize("reason", ["a\0b", "\0", "", " \n", "x" * 5000])
async def test_a_reason_that_cannot_be_stored_is_a_failure(
    mesh: HookMesh, tenant: Tenant, reason: str
) -> None:
    plugin = await mesh.plugin(revise(reason))
    await tenant.register("a", plugin.endpoint, FINALIZE)
    with refused(Reason.PLUGIN_FAILED):
        await tenant.draft("k")
    assert await tenant.log() == [("a", "failed")]


async def test_a_hanging_plugin_opens_its_circuit_after_three_timeouts(
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


async def test_a_closed_plugin_with_an_open_circuit_still_decides(tenant: Tenant) -> None:
    await tenant.register("dead", DEAD_ENDPOINT, SPAWN, policy=CLOSED)
    for _ in range(FAILURES_TO_OPEN + 1):
        with refused(Reason.PLUGIN_FAILED):
            await tenant.spawn()
    assert (await tenant.log())[-1] == ("dead", "skipped")


async def test_registering_or_resuming_a_plugin_closes_its_circuit(mesh: HookMesh, tenant: Tenant) -> None:
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


async def test_each_replica_has_its_own_breaker_and_a_resume_closes_all(
    mesh: HookMesh, tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]]
) -> None:
    plugin, endpoint = await raw(crash)
    replicas = [tenant, tenant.on(await mesh.replica())]
    await tenant.register("dead", endpoint, SPAWN, policy=OPEN)
    for called in (1, 2):
        for _ in range(FAILURES_TO_OPEN + 2):
            await replicas[called - 1].spawn()
        assert plugin.call_count == FAILURES_TO_OPEN * called
    await tenant.as_client("ResumePlugin", pb.ResumePluginRequest(name="dead"))
    for more, replica in enumerate(replicas, start=1):
        async with asyncio.timeout(60):
            while plugin.call_count < FAILURES_TO_OPEN * 2 + more:
                await replica.spawn()


async def test_tenants_have_separate_breakers(mesh: HookMesh, tenant: Tenant, replica: Peer) -> None:
    plugin = await mesh.plugin()
    other = mesh.tenant(replica)
    await tenant.register("a", DEAD_ENDPOINT, SPAWN, policy=OPEN)
    for _ in range(FAILURES_TO_OPEN):
        await tenant.spawn()
    plugin.says(ALLOW)
    await other.register("a", plugin.endpoint, SPAWN)
    await other.spawn()
    assert await other.log() == [("a", "allow")]


async def test_a_dispatch_ends_within_the_callers_deadline(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]], ample_reserve: float
) -> None:
    """All hooks run concurrently."""
    _, endpoint = await raw(hang)
    await tenant.prepare(1, plugins=PluginLimits(max_gate_count=3 * len(DEFAULT_ANSWERS)))
    for hook in DEFAULT_ANSWERS:
        for name in ("a", "b", "c"):
            plugin = f"{name}-{HookKind.Name(hook).lower().replace('_', '-')}"
            await tenant.register(
                plugin, endpoint, hook, policy=OPEN, timeout=Duration(seconds=60), max_concurrent_calls=32
            )
    seconds = ample_reserve + 5.0
    answers = await asyncio.gather(
        *(dispatch(tenant, hook, timeout_seconds=seconds) for hook in DEFAULT_ANSWERS)
    )
    assert [answer.decision for answer in answers] == list(DEFAULT_ANSWERS.values())
    assert [decision for _, decision in await tenant.log()] == ["failed"] * 3 * len(DEFAULT_ANSWERS)


@pytest.mark.parametrize("hook", DEFAULT_ANSWERS, ids=HookKind.Name)
async def test_cancellation_reaches_the_handler(
    tenant: Tenant, raw: Callable[[Answer], Awaitable[tuple[Raw, str]]], hook: "HookKind.ValueType"
) -> None:
    called = asyncio.Event()

    async def hang_when_called() -> bytes:
        called.set()
        return await hang()

    plugin, endpoint = await raw(hang_when_called)
    await tenant.register("a", endpoint, hook, timeout=Duration(seconds=600))
    call = asyncio.create_task(dispatch(tenant, hook))
    await called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(60):
        await plugin.cancelled.wait()


async def test_concurrent_calls_are_limited(mesh: HookMesh, tenant: Tenant) -> None:
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


async def test_a_call_without_a_free_slot_fails_and_does_not_count_against_the_plugin(
    mesh: HookMesh, tenant: Tenant, ample_reserve: float
) -> None:
    plugin = await mesh.plugin()
    held, hold = asyncio.Event(), asyncio.Event()

    async def stay(_event: Any) -> Any:
        held.set()
        await hold.wait()
        return ALLOW

    plugin.decide = stay
    await tenant.register(
        "a", plugin.endpoint, SPAWN, policy=OPEN, max_concurrent_calls=1, timeout=Duration(seconds=600)
    )
    first = asyncio.create_task(tenant.spawn())
    await held.wait()
    seconds = ample_reserve + 3.0
    await asyncio.gather(*(tenant.spawn(timeout_seconds=seconds) for _ in range(FAILURES_TO_OPEN)))
    hold.set()
    await first
    await tenant.spawn()
    decisions_made = [decision for _, decision in await tenant.log()]
    assert sorted(decisions_made) == ["allow", "allow", "failed", "failed", "failed"]
