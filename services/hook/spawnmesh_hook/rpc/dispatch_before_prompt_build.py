"""DispatchBeforePromptBuild: call the plugins for BEFORE_PROMPT_BUILD."""

from contextlib import aclosing

from spawnmesh.hook.v1 import decision_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.modifiers import MergedPrompt, PromptChange, merge_prompts
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import check_own_run


async def dispatch_before_prompt_build(
    request: pb.DispatchBeforePromptBuildRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforePromptBuildResponse:
    """Return the merged changes of all plugins.

    Raises NOT_FOUND for another run, and PluginFailed.
    """
    check_own_run(caller, request.event.session_id, request.event.run_id)
    answers = deps.dispatcher.answers(
        caller.tenant_id,
        HookKind.BEFORE_PROMPT_BUILD,
        budget,
        request.event,
        request_builders.before_prompt_build,
    )
    async with aclosing(answers):
        changes = [_parse(access.plugin.name, answer.decision) async for access, answer in answers]
    return _render(merge_prompts(changes))


def _parse(plugin: str, decision: decision_pb2.PromptDecision) -> PromptChange:
    tools = tuple(decision.tools.names) if decision.HasField("tools") else None
    return PromptChange(plugin, decision.system_prompt, decision.context, tools)


def _render(merged: MergedPrompt) -> pb.DispatchBeforePromptBuildResponse:
    decision = decision_pb2.PromptDecision(system_prompt=merged.system_prompt, context=merged.context)
    if merged.tools is not None:
        decision.tools.SetInParent()
        decision.tools.names.extend(merged.tools)
    return pb.DispatchBeforePromptBuildResponse(decision=decision, decided_by=merged.decided_by)
