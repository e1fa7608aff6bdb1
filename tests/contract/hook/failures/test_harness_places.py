"""A harness holds a limited part of a replica while plugins do not answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.tokens import HarnessClaim

from tests.support.hook.fixtures import CONTENT, TOOL_CALL, HookMesh, Tenant, refused
from tests.support.hook.scripted_plugin import ScriptedPlugin
from tests.support.waiting import eventually

HARNESS = HarnessClaim("tok_1", "")
MAX_BYTES = 1024 * 1024
PROCEED = decisions.ToolCallDecision(proceed=decisions.Proceed())
RUN: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1"}


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    """Give a tenant of a replica that has two places for the steps of its harnesses."""
    return mesh.tenant(await mesh.replica(call_limits={"write": {"concurrent_call_count": 2}}))


@pytest.fixture
async def plugin(mesh: HookMesh, tenant: Tenant) -> AsyncIterator[ScriptedPlugin]:
    """Give a plugin that answers no call before the test is over."""
    plugin, ends = await mesh.plugin(), asyncio.Event()

    async def hang(_event: Any) -> Any:
        await ends.wait()
        return PROCEED

    plugin.decide = hang
    await tenant.register("gate", plugin.endpoint, TOOL_CALL, grants=[CONTENT])
    yield plugin
    ends.set()


async def dispatch(
    tenant: Tenant,
    arguments: str = "{}",
    timeout_seconds: float = 60.0,
    harness: HarnessClaim | None = HARNESS,
) -> run_pb.DispatchBeforeToolCallResponse:
    event = events.BeforeToolCallEvent(**RUN, tool_name="note", arguments_json=arguments)
    request = run_pb.DispatchBeforeToolCallRequest(event=event)
    answer: run_pb.DispatchBeforeToolCallResponse = await tenant.as_run(
        "DispatchBeforeToolCall", request, timeout_seconds, harness=harness
    )
    return answer


async def test_DispatchBeforeToolCall__harness_waits_for_a_place_and_a_run_of_the_mesh_does_not(
    tenant: Tenant, plugin: ScriptedPlugin
) -> None:
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(dispatch(tenant)) for _ in range(2)]
        await eventually(lambda: len(plugin.heard) == 2)
        with refused(Reason.DEADLINE_EXCEEDED):
            await dispatch(tenant, timeout_seconds=1.0)
        assert len(plugin.heard) == 2
        held.append(group.create_task(dispatch(tenant, harness=None)))
        await eventually(lambda: len(plugin.heard) == 3)
        held.append(group.create_task(dispatch(tenant)))
        plugin.says(PROCEED)
        held[0].cancel()
        await held[3]
        assert len(plugin.heard) == 4
        for call in held:
            call.cancel()


@pytest.mark.parametrize("harness", [HARNESS, None])
async def test_DispatchBeforeToolCall__arguments_have_a_bound_in_bytes(
    tenant: Tenant, plugin: ScriptedPlugin, harness: HarnessClaim | None
) -> None:
    plugin.says(PROCEED)
    longest = '{"a":"' + "é" * ((MAX_BYTES - 8) // 2) + '"}'
    assert len(longest.encode()) == MAX_BYTES
    assert (await dispatch(tenant, longest, harness=harness)).decision.HasField("proceed")
    with refused(Reason.INVALID_REQUEST) as error:
        await dispatch(tenant, longest + " ", harness=harness)
    assert "arguments_json must have at most 1048576 bytes" in str(error.value)
    assert [len(event.arguments_json.encode()) for event in plugin.heard] == [MAX_BYTES]


@pytest.mark.parametrize(
    "event",
    [
        events.BeforePromptBuildEvent(**RUN, system_prompt="x" * (MAX_BYTES + 1)),
        events.BeforePromptBuildEvent(**RUN, tool_names=["x"] * 129),
        events.BeforePromptBuildEvent(**RUN, agent_id="x" * 65),
    ],
    ids=["prompt", "tools", "agent"],
)
async def test_DispatchBeforePromptBuild__facts_have_bounds(
    tenant: Tenant, event: events.BeforePromptBuildEvent
) -> None:
    with refused(Reason.INVALID_REQUEST):
        await tenant.as_run(
            "DispatchBeforePromptBuild", run_pb.DispatchBeforePromptBuildRequest(event=event), harness=HARNESS
        )
