"""TestPlugin: call a plugin once for each of its hooks, with sample events."""

from collections.abc import Callable, Mapping
from typing import Any

from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.clients.handler_request import HandlerRequest
from spawnmesh_hook.domain.plugins import ContentAccess, HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import render_delivery

SESSION_ID, RUN_ID, AGENT_ID = "ses_test", "run_test", "test"
_RUN: dict[str, Any] = {"session_id": SESSION_ID, "run_id": RUN_ID, "agent_id": AGENT_ID}
_TEXT = "This is a test of the plugin."

_SAMPLES: Mapping[HookKind, Callable[[ContentAccess], HandlerRequest[Any, Any]]] = {
    HookKind.BEFORE_SPAWN: lambda access: request_builders.before_spawn(
        access, event_pb2.BeforeSpawnEvent(session_id=SESSION_ID, agent_id=AGENT_ID, task=_TEXT)
    ),
    HookKind.BEFORE_AGENT_FINALIZE: lambda access: request_builders.before_agent_finalize(
        access, event_pb2.BeforeAgentFinalizeEvent(**_RUN, draft_text=_TEXT, draft_bytes=len(_TEXT)), 0
    ),
    HookKind.BEFORE_MODEL_RESOLVE: lambda access: request_builders.before_model_resolve(
        access, event_pb2.BeforeModelResolveEvent(**_RUN, models=["test"])
    ),
    HookKind.BEFORE_PROMPT_BUILD: lambda access: request_builders.before_prompt_build(
        access, event_pb2.BeforePromptBuildEvent(**_RUN, tool_names=["test"], system_prompt=_TEXT)
    ),
    HookKind.BEFORE_TOOL_CALL: lambda access: request_builders.before_tool_call(
        access, event_pb2.BeforeToolCallEvent(**_RUN, tool_name="test", arguments_json="{}")
    ),
    HookKind.DELIVERY_TARGET: lambda access: request_builders.delivery_target(
        access, DeliveryTargetEvent(session_id=SESSION_ID, run_id=RUN_ID, outcome=END_OUTCOME_SUCCEEDED)
    ),
    HookKind.BEFORE_COMPACTION: lambda access: request_builders.before_compaction(
        access,
        BeforeCompactionEvent(
            session_id=SESSION_ID, run_id=RUN_ID, source_entry_count=1, previous_summary=_TEXT
        ),
    ),
}


async def test_plugin(
    request: pb.TestPluginRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.TestPluginResponse:
    """Return the delivery of each call, in the order of the plugin's hooks. Raises NOT_FOUND.

    The plugin is called even if it is paused or its circuit breaker is open.
    """
    plugin = await deps.plugin_cache.read_one(caller.tenant_id, request.name)
    access = ContentAccess(plugin, masks_secrets=False)  # The sample events hold no secrets.
    deliveries = [
        await deps.invoker.invoke_for_test(caller.tenant_id, plugin, _sample(access, hook), budget)
        for hook in plugin.hooks
    ]
    return pb.TestPluginResponse(deliveries=map(render_delivery, deliveries))


def _sample(access: ContentAccess, hook: HookKind) -> HandlerRequest[Any, Any]:
    if hook in _SAMPLES:
        return _SAMPLES[hook](access)
    event = observed_pb2.ObservedEvent(event_key=f"test:{new_id(IdKind.DELIVERY)}", **_RUN)
    getattr(event, hook.lower()).SetInParent()
    return request_builders.observed(access, hook, event)
