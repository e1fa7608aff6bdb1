"""A plugin that keeps its connections open and answers nothing is found by its health service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1.hook_handler_service_pb2 import HandleBeforeSpawnResponse
from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_hook.domain.call_failures import SILENT, STOPPED_ANSWERING

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import CLOSED, FINALIZE, OPEN, SPAWN, HookMesh, Tenant, refused
from tests.support.hook.plugin_process import PluginProcess, plugin_process
from tests.support.hook.scripted_plugin import ALLOW, CONTINUE
from tests.support.links import open_link, to_address
from tests.support.waiting import eventually

TIMEOUT = Duration(seconds=60)
CALLER_SECONDS = 100.0
SLOW_SECONDS = 4

MODULE = f"""
import time

from spawnmesh_plugin import allow, go_on, hook


@hook("before_spawn")
def judge(event):
    if event.agent_id == "slow":
        time.sleep({SLOW_SECONDS})
    return allow()


@hook("before_agent_finalize")
async def review(event):
    return go_on()
"""


@pytest.fixture
async def plugin(fork_server: ForkServer, keys: Path, tmp_path: Path) -> AsyncIterator[PluginProcess]:
    (tmp_path / "gate.py").write_text(MODULE)
    async with plugin_process(fork_server, "gate", keys, cwd=tmp_path) as started:
        yield started


async def spawn(tenant: Tenant, **facts: Any) -> Any:
    return (await tenant.spawn(timeout_seconds=CALLER_SECONDS, **facts)).decision


async def refusal_of(tenant: Tenant, **facts: Any) -> MeshError:
    with refused(Reason.PLUGIN_FAILED) as caught:
        await spawn(tenant, **facts)
    return caught.value


async def register(tenant: Tenant, endpoint: str, *hooks: Any, **more: Any) -> None:
    """Register the plugin, and let it answer, so that its health service is known."""
    await tenant.register("gate", endpoint, *hooks, **{"policy": CLOSED, "timeout": TIMEOUT, **more})
    for _ in range(3):
        await (spawn(tenant) if SPAWN in hooks else tenant.draft("first"))


async def errors(tenant: Tenant) -> set[str]:
    return {row.error for row in await tenant.deliveries() if row.error}


async def test_DispatchBeforeSpawn__a_paused_gate_is_noticed_and_asked_again_when_it_is_back(
    tenant: Tenant, plugin: PluginProcess
) -> None:
    await register(tenant, plugin.endpoint, SPAWN)
    plugin.pause()
    refusals = await asyncio.gather(*(refusal_of(tenant) for _ in range(4)))
    refusals += [await refusal_of(tenant) for _ in range(4)]
    assert {(error.status, error.retry_after_seconds) for error in refusals} == {(Status.UNAVAILABLE, 1.0)}
    rows = {(decision_of(row), row.error) for row in await tenant.deliveries() if row.error}
    assert rows == {("failed", STOPPED_ANSWERING.error), ("skipped", SILENT.error)}
    plugin.go_on()
    await eventually(lambda: allowed(tenant))
    # Its circuit breaker never opened, so nothing waited for that.
    assert await errors(tenant) == {STOPPED_ANSWERING.error, SILENT.error}


async def allowed(tenant: Tenant) -> bool:
    try:
        return bool(await spawn(tenant) == ALLOW)
    except MeshError:
        return False


async def test_DispatchBeforeSpawn__a_paused_plugin_that_is_open_is_skipped(
    tenant: Tenant, plugin: PluginProcess
) -> None:
    await register(tenant, plugin.endpoint, SPAWN, policy=OPEN)
    plugin.pause()
    assert [await spawn(tenant) for _ in range(5)] == [ALLOW] * 5
    assert await errors(tenant) == {STOPPED_ANSWERING.error, SILENT.error}
    plugin.go_on()


async def test_DispatchBeforeAgentFinalize__a_paused_gate_is_asked_about_the_same_draft_again(
    tenant: Tenant, plugin: PluginProcess
) -> None:
    await register(tenant, plugin.endpoint, FINALIZE)
    plugin.pause()
    for _ in range(2):
        with refused(Reason.PLUGIN_FAILED) as caught:
            await tenant.draft("kept", timeout_seconds=CALLER_SECONDS)
        assert is_transient(caught.value)
    plugin.go_on()

    async def decided() -> bool:
        try:
            return bool((await tenant.draft("kept", timeout_seconds=CALLER_SECONDS)).decision == CONTINUE)
        except MeshError:
            return False

    await eventually(decided)
    assert await errors(tenant) == {STOPPED_ANSWERING.error, SILENT.error}


async def test_DispatchBeforeSpawn__a_plugin_that_is_killed_and_started_again_while_it_is_silent(
    fork_server: ForkServer, keys: Path, tmp_path: Path, tenant: Tenant, plugin: PluginProcess
) -> None:
    await register(tenant, plugin.endpoint, SPAWN)
    plugin.pause()
    await refusal_of(tenant)
    plugin.process.kill()
    await plugin.process.wait()
    port = int(plugin.endpoint.rpartition(":")[2])
    async with plugin_process(fork_server, "gate", keys, cwd=tmp_path, port=port):
        await eventually(lambda: allowed(tenant))


async def test_DispatchBeforeSpawn__slow_handlers_are_waited_for_plain_and_async(
    mesh: HookMesh, tenant: Tenant, plugin: PluginProcess
) -> None:
    await register(tenant, plugin.endpoint, SPAWN)
    other = await mesh.plugin(ALLOW)
    await tenant.register("async", other.endpoint, SPAWN, policy=CLOSED, timeout=TIMEOUT)
    await spawn(tenant)

    async def think(_event: Any) -> Any:
        await asyncio.sleep(SLOW_SECONDS)
        return ALLOW

    other.decide = think
    assert await spawn(tenant, agent_id="slow") == ALLOW
    assert await errors(tenant) == set()
    assert len(other.heard) == 2


async def test_DispatchBeforeSpawn__without_a_health_service_a_silent_plugin_has_its_time_out(
    tenant: Tenant,
) -> None:
    async def allow(_request: bytes, _context: Any) -> bytes:
        return HandleBeforeSpawnResponse(decision=ALLOW).SerializeToString()

    async with AsyncExitStack() as stack:
        server = grpc.aio.server()
        handlers = {"HandleBeforeSpawn": grpc.unary_unary_rpc_method_handler(allow)}
        service = "spawnmesh.hook.v1.HookHandlerService"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, None)
        link = await stack.enter_async_context(open_link(to_address(f"127.0.0.1:{port}")))
        await register(tenant, f"grpc://{link.target}", SPAWN, timeout=Duration(seconds=SLOW_SECONDS))
        link.hold()
        await refusal_of(tenant)
        link.heal()
        assert await spawn(tenant) == ALLOW
    assert await errors(tenant) == {f"no answer within {SLOW_SECONDS} s"}
