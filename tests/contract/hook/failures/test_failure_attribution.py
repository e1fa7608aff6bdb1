"""A timeout counts against a plugin only if the plugin had a fair share of its time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.duration_pb2 import Duration
from grpc import aio
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.circuit_breaker import FAILURES_TO_OPEN
from spawnmesh_runtime.peers import Peer

from tests.support.hook.fixtures import (
    CLOSED,
    CONTENT,
    FINALIZE,
    OPEN,
    SPAWN,
    TOOL_CALL,
    HookMesh,
    Tenant,
    refused,
)
from tests.support.hook.scripted_plugin import ALLOW, revise
from tests.support.waiting import eventually


async def hang(_event: Any) -> Any:
    await asyncio.Event().wait()


async def one_timeout(mesh: HookMesh, replica: Peer, timeout: Duration) -> None:
    """Wait until a plugin of another tenant has not answered within its timeout."""
    await one_timeout_of(await tenant_with_hung_plugin(mesh, replica, timeout))


async def one_timeout_of(tenant: Tenant) -> None:
    """Wait until the tenant's plugin has not answered within its timeout."""
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn()


async def tenant_with_hung_plugin(mesh: HookMesh, replica: Peer, timeout: Duration) -> Tenant:
    """Return a tenant of the replica whose plugin never answers."""
    plugin, other = await mesh.plugin(), mesh.tenant(replica)
    plugin.decide = hang
    await other.register("clock", plugin.endpoint, SPAWN, timeout=timeout)
    return other


async def test_a_burst_that_waits_for_slots_does_not_open_the_circuit(
    mesh: HookMesh, tenant: Tenant, replica: Peer
) -> None:
    plugin = await mesh.plugin()
    hold = asyncio.Event()

    async def answer_the_first(event: Any) -> Any:
        if len(plugin.heard) <= FAILURES_TO_OPEN:
            await hold.wait()
            return ALLOW
        return await hang(event)

    plugin.decide = answer_the_first
    await tenant.register(
        "gate", plugin.endpoint, SPAWN, max_concurrent_calls=FAILURES_TO_OPEN, timeout=Duration(seconds=8)
    )
    burst = [asyncio.create_task(tenant.spawn()) for _ in range(2 * FAILURES_TO_OPEN)]
    await eventually(lambda: len(plugin.heard) == FAILURES_TO_OPEN)
    await one_timeout(mesh, replica, Duration(seconds=5))
    hold.set()
    await asyncio.gather(*burst, return_exceptions=True)
    assert (
        await tenant.log() == [("gate", "allow")] * FAILURES_TO_OPEN + [("gate", "failed")] * FAILURES_TO_OPEN
    )
    late = (await tenant.deliveries())[:FAILURES_TO_OPEN]
    plugin.says(ALLOW)
    assert (await tenant.spawn()).decision == ALLOW
    assert all("that were left" in delivery.error for delivery in late)


async def test_a_plugin_below_a_slow_one_keeps_its_circuit_closed(
    mesh: HookMesh, tenant: Tenant, ample_reserve: float
) -> None:
    slow, below = await mesh.plugin(), await mesh.plugin()
    slow.decide, below.decide = hang, hang
    await tenant.register("slow", slow.endpoint, SPAWN, priority=9, policy=OPEN, timeout=Duration(seconds=3))
    await tenant.register("below", below.endpoint, SPAWN)
    calls = [tenant.spawn(timeout_seconds=ample_reserve + 4.0) for _ in range(FAILURES_TO_OPEN)]
    refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(refusal, "reason", refusal) for refusal in refusals] == [
        Reason.PLUGIN_FAILED
    ] * FAILURES_TO_OPEN
    below.says(ALLOW)
    assert (await tenant.spawn()).decision == ALLOW
    assert (await tenant.log())[-2:] == [("slow", "skipped"), ("below", "allow")]


async def test_callers_with_short_deadlines_do_not_open_the_circuit(
    mesh: HookMesh, tenant: Tenant, ample_reserve: float
) -> None:
    """This holds for services too, since a service's deadline comes from its own caller."""
    plugin = await mesh.plugin()
    plugin.decide = hang
    await tenant.register("gate", plugin.endpoint, FINALIZE, SPAWN, TOOL_CALL, policy=OPEN)
    short = ample_reserve + 2.4
    calls = [
        tenant.draft("d", run_id=f"run_{number}", timeout_seconds=short) for number in range(FAILURES_TO_OPEN)
    ]
    calls += [tenant.as_run("DispatchBeforeToolCall", call_of_tool(), short) for _ in range(FAILURES_TO_OPEN)]
    await asyncio.gather(*calls)
    assert await tenant.log() == [("gate", "failed")] * 2 * FAILURES_TO_OPEN
    plugin.says(revise("Take it out."))
    assert (await tenant.draft("d", run_id="run_of_another")).decision == revise("Take it out.")


async def test_a_plugin_that_hangs_for_its_fair_share_opens_the_circuit(
    mesh: HookMesh, tenant: Tenant, ample_reserve: float
) -> None:
    plugin = await mesh.plugin()
    plugin.decide = hang
    await tenant.register("gate", plugin.endpoint, SPAWN, timeout=Duration(seconds=4))
    calls = [tenant.spawn(timeout_seconds=ample_reserve + 3.6) for _ in range(FAILURES_TO_OPEN)]
    refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(refusal, "reason", refusal) for refusal in refusals] == [
        Reason.PLUGIN_FAILED
    ] * FAILURES_TO_OPEN
    with refused(Reason.PLUGIN_FAILED):
        await tenant.spawn()
    assert [decision for _, decision in await tenant.log()] == ["failed"] * FAILURES_TO_OPEN + ["skipped"]


async def test_calls_too_large_for_a_plugin_do_not_open_its_circuit(mesh: HookMesh, tenant: Tenant) -> None:
    async with plugin_of_small_messages() as endpoint:
        await tenant.register("gate", endpoint, TOOL_CALL, policy=CLOSED, grants=(CONTENT,))
        for _ in range(FAILURES_TO_OPEN):
            with refused(Reason.PLUGIN_FAILED):
                await tenant.as_run("DispatchBeforeToolCall", call_of_tool("x" * 500_000))
        answer = await tenant.as_run("DispatchBeforeToolCall", call_of_tool())
    assert answer.decision.HasField("proceed")


def call_of_tool(value: str = "x") -> run_pb.DispatchBeforeToolCallRequest:
    event = events.BeforeToolCallEvent(
        session_id="ses_1", run_id="run_1", tool_name="note", arguments_json=json.dumps({"value": value})
    )
    return run_pb.DispatchBeforeToolCallRequest(event=event)


class Agreeing(HookHandlerServiceServicer):
    """Lets every tool call proceed."""

    async def HandleBeforeToolCall(
        self, request: Any, context: Any
    ) -> handler_pb.HandleBeforeToolCallResponse:
        return handler_pb.HandleBeforeToolCallResponse(
            decision=decisions.ToolCallDecision(proceed=decisions.Proceed())
        )


@asynccontextmanager
async def plugin_of_small_messages() -> AsyncIterator[str]:
    """Serve a plugin that accepts messages of 64 KiB at most."""
    server = aio.server(options=[("grpc.max_receive_message_length", 64 * 1024)])
    add_HookHandlerServiceServicer_to_server(Agreeing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_the_error_of_a_plugin_that_hangs_names_its_own_timeout(
    mesh: HookMesh, tenant: Tenant, replica: Peer
) -> None:
    plugin, other = (
        await mesh.plugin(),
        await tenant_with_hung_plugin(mesh, replica, Duration(nanos=200_000_000)),
    )

    async def answer_the_first(event: Any) -> Any:
        if len(plugin.heard) > 1:
            await hang(event)
        await one_timeout_of(other)  # The second call waits for a slot, for less than half of its time.
        return ALLOW

    plugin.decide = answer_the_first
    await tenant.register("gate", plugin.endpoint, SPAWN, max_concurrent_calls=1, timeout=Duration(seconds=6))
    await asyncio.gather(tenant.spawn(), tenant.spawn(), return_exceptions=True)
    assert [delivery.error for delivery in await tenant.deliveries()] == ["no answer within 6 s", ""]
