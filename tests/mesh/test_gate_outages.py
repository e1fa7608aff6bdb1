"""A plugin with failure policy CLOSED is down while runs offer their answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import (
    HOOK_KIND_BEFORE_AGENT_FINALIZE,
    HOOK_KIND_BEFORE_TOOL_CALL,
    HookKind,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.hook.plugin_process import serving
from tests.support.model_router.provider import LoopbackProvider
from tests.support.model_router.responses import COMPLETED, responses, said
from tests.support.waiting import eventually

RUN_COUNT = 3
# The breaker stays open for up to ten seconds after the last failed call. A run that waited once can
# meet it after pauses of 1, 2 and 4 seconds, and a probe of another run after the next one.
MOST_DELAYS_AFTER_RETURN = 4
GATE = """
from spawnmesh_plugin import go_on, hook, proceed


@hook("before_agent_finalize")
def judge(event):
    return go_on()


@hook("before_tool_call")
def judge_call(event):
    return proceed()
"""
GATE_WITH_DATABASE = """
from pathlib import Path

from spawnmesh_plugin import go_on, hook


@hook("before_agent_finalize")
def judge(event):
    assert Path("database").read_text() == "go_on"
    return go_on()
"""
_CALLER = AgentProfile(
    agent_id=CALLER,
    system_prompt=f"You are the {CALLER}.",
    models=[SCRIPTED_AGENT],
    tools=["list_files"],
)


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def mesh(stack: Stack, tenant: str, provider: LoopbackProvider) -> AsyncIterator[WireMesh]:
    """Connect as a client of a tenant for this test alone, whose model answers at once."""
    provider.on("thinker", responses(*said("Done."), COMPLETED))
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    targets = {"session": stack.targets["session"], "hook": stack.targets["hook"]}
    async with connect_wire(**targets, token=stack.client_token(tenant)) as client:
        yield client


async def register(
    mesh: WireMesh, port: int, kind: HookKind = HOOK_KIND_BEFORE_AGENT_FINALIZE, **more: Any
) -> None:
    hook = mesh.service("hook")
    plugin = hook_pb.Plugin(
        name="gate",
        endpoint=f"grpc://127.0.0.1:{port}",
        hooks=[kind],
        grants=[hook_pb.GRANT_FINALIZE_CONTROL, hook_pb.GRANT_CONVERSATION_ACCESS],
        failure_policy=hook_pb.FAILURE_POLICY_CLOSED,
        **more,
    )
    request = hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True)
    await hook.unary(HookServiceStub(hook.channel).UpdatePlugin, request, timeout_seconds=60)


async def spawn(mesh: WireMesh) -> str:
    return str((await mesh.spawn("say something", model="loopback/thinker")).session_id)


async def run_of(mesh: WireMesh, session_id: str) -> session_pb2.Run:
    return (await mesh.session(session_id)).latest_run


async def test_runs_wait_for_a_gate_that_was_killed_and_offer_the_same_answers_when_it_is_back(
    fork_server: ForkServer,
    stack: Stack,
    mesh: WireMesh,
    tenant: str,
    provider: LoopbackProvider,
    tmp_path: Path,
) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    (port,) = free_ports(1)
    asked_before = provider.asked("thinker")
    await register(mesh, port)
    async with serving(fork_server, "gate", stack.keys, tenant, cwd=tmp_path, port=port):
        first = await mesh.wait(await spawn(mesh), 60)
        assert first.session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED
    # The gate is killed. Each run offers its answer, and goes back to the queue.
    sessions = [await spawn(mesh) for _ in range(RUN_COUNT)]

    async def all_are_delayed() -> bool:
        runs = [await run_of(mesh, session_id) for session_id in sessions]
        assert all(run.state < session_pb2.RUN_STATE_SUCCEEDED for run in runs), runs
        return all(
            run.delay.reason == reason_pb2.REASON_PLUGIN_FAILED and "gate" in run.delay.message
            for run in runs
        )

    await eventually(all_are_delayed)
    async with serving(fork_server, "gate", stack.keys, tenant, cwd=tmp_path, port=port):
        delays = {session_id: (await run_of(mesh, session_id)).delay.count for session_id in sessions}
        for session_id in sessions:
            run = (await mesh.wait(session_id, 60)).session.latest_run
            assert (run.state, run.result_text) == (session_pb2.RUN_STATE_SUCCEEDED, "Done.")
            assert (run.attempt_count, run.revision_count) == (1, 0)
            assert run.delay.count - delays[session_id] <= MOST_DELAYS_AFTER_RETURN
    assert provider.asked("thinker") - asked_before == 1 + RUN_COUNT


async def test_a_run_waits_for_a_gate_that_is_up_without_its_database(
    fork_server: ForkServer, stack: Stack, mesh: WireMesh, tenant: str, tmp_path: Path
) -> None:
    (tmp_path / "gate.py").write_text(GATE_WITH_DATABASE)
    (port,) = free_ports(1)
    await register(mesh, port)
    async with serving(fork_server, "gate", stack.keys, tenant, cwd=tmp_path, port=port):
        session_id = await spawn(mesh)

        async def is_delayed() -> bool:
            run = await run_of(mesh, session_id)
            assert run.state < session_pb2.RUN_STATE_SUCCEEDED, run
            return run.delay.reason == reason_pb2.REASON_PLUGIN_FAILED and "gate" in run.delay.message

        await eventually(is_delayed)
        (tmp_path / "database").write_text("go_on")
        run = (await mesh.wait(session_id, 60)).session.latest_run
    assert (run.state, run.result_text) == (session_pb2.RUN_STATE_SUCCEEDED, "Done.")


async def test_a_run_that_waited_for_a_gate_as_long_as_the_gate_allows_fails_and_says_so(
    mesh: WireMesh, provider: LoopbackProvider
) -> None:
    asked_before = provider.asked("thinker")
    (port,) = free_ports(1)
    await register(mesh, port, max_wait=Duration(nanos=1_000_000))
    waited = await mesh.wait(await spawn(mesh), 60)
    run = waited.session.latest_run
    assert (run.state, run.error_reason) == (session_pb2.RUN_STATE_FAILED, reason_pb2.REASON_PLUGIN_FAILED)
    assert "plugin gate gave no valid answer" in run.error_message
    assert "within its max_wait of 0.001 s" in run.error_message
    assert run.delay.count == 1
    assert provider.asked("thinker") - asked_before == 1


async def test_a_tool_call_waits_for_a_gate_that_is_away(
    fork_server: ForkServer, stack: Stack, mesh: WireMesh, tenant: str, tmp_path: Path
) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    (port,) = free_ports(1)
    await register(mesh, port, HOOK_KIND_BEFORE_TOOL_CALL)
    await mesh.put_agent(_CALLER)
    session_id = str((await mesh.spawn("list_files {}", agent_id=CALLER)).session_id)

    async def is_delayed() -> bool:
        run = await run_of(mesh, session_id)
        assert run.state < session_pb2.RUN_STATE_SUCCEEDED, run
        return run.delay.reason == reason_pb2.REASON_PLUGIN_FAILED and "gate" in run.delay.message

    await eventually(is_delayed)
    async with serving(fork_server, "gate", stack.keys, tenant, cwd=tmp_path, port=port):
        run = (await mesh.wait(session_id, 60)).session.latest_run
    assert (run.state, run.attempt_count) == (session_pb2.RUN_STATE_SUCCEEDED, 1)
    assert "PLUGIN_FAILED" not in run.result_text


async def test_a_tool_call_is_refused_once_its_gate_was_waited_for_as_long_as_it_allows(
    mesh: WireMesh,
) -> None:
    (port,) = free_ports(1)
    await register(mesh, port, HOOK_KIND_BEFORE_TOOL_CALL, max_wait=Duration(nanos=1_000_000))
    await mesh.put_agent(_CALLER)
    run = (await mesh.wait((await mesh.spawn("list_files {}", agent_id=CALLER)).session_id, 60)).session
    assert run.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, run
    assert "within its max_wait of 0.001 s" in run.latest_run.result_text
