"""Trying a plugin out: one call for each of its hooks, with made-up facts."""

from collections.abc import Callable, Mapping
from typing import Any

from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh_core.ids import IdKind, new_id

from spawnmesh_hook import questions, store
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.domain.plugins import HookKind, Plugin, Viewer
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.questions import Question

SESSION_ID, RUN_ID, AGENT_ID = "ses_test", "run_test", "test"
_RUN: dict[str, Any] = {"session_id": SESSION_ID, "run_id": RUN_ID, "agent_id": AGENT_ID}
_TEXT = "This is a test of the plugin."

_GATES: Mapping[HookKind, Callable[[Viewer], Question[Any, Any]]] = {
    HookKind.BEFORE_SPAWN: lambda viewer: questions.before_spawn(
        viewer, event_pb2.BeforeSpawnEvent(session_id=SESSION_ID, agent_id=AGENT_ID, task=_TEXT)
    ),
    HookKind.BEFORE_AGENT_FINALIZE: lambda viewer: questions.before_agent_finalize(
        viewer, event_pb2.BeforeAgentFinalizeEvent(**_RUN, draft_text=_TEXT, draft_bytes=len(_TEXT)), 0
    ),
    HookKind.BEFORE_MODEL_RESOLVE: lambda viewer: questions.before_model_resolve(
        viewer, event_pb2.BeforeModelResolveEvent(**_RUN, models=["test"])
    ),
    HookKind.BEFORE_PROMPT_BUILD: lambda viewer: questions.before_prompt_build(
        viewer, event_pb2.BeforePromptBuildEvent(**_RUN, tool_names=["test"], system_prompt=_TEXT)
    ),
    HookKind.BEFORE_TOOL_CALL: lambda viewer: questions.before_tool_call(
        viewer, event_pb2.BeforeToolCallEvent(**_RUN, tool_name="test", arguments_json="{}")
    ),
    HookKind.DELIVERY_TARGET: lambda viewer: questions.delivery_target(
        viewer, DeliveryTargetEvent(session_id=SESSION_ID, run_id=RUN_ID, outcome="succeeded")
    ),
    HookKind.BEFORE_COMPACTION: lambda viewer: questions.before_compaction(
        viewer,
        BeforeCompactionEvent(session_id=SESSION_ID, run_id=RUN_ID, source_entry_count=1, previous_summary=_TEXT),
    ),
}


async def try_plugin(calls: PluginCalls, tenant_id: str, plugin: Plugin, budget: Budget) -> list[store.Delivery]:
    """What came of each call, in the order of the plugin's hooks."""
    viewer = Viewer(plugin, masks_secrets=False)  # The facts are made up, and none is secret.
    return [await calls.try_out(tenant_id, plugin, _question(viewer, hook), budget) for hook in plugin.hooks]


def _question(viewer: Viewer, hook: HookKind) -> Question[Any, Any]:
    if hook in _GATES:
        return _GATES[hook](viewer)
    event = observed_pb2.ObservedEvent(event_key=f"test:{new_id(IdKind.DELIVERY)}", **_RUN)
    getattr(event, hook.lower()).SetInParent()
    return questions.observed(viewer, hook, event)
