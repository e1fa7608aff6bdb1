"""DispatchBeforeModelResolve: call the plugins for BEFORE_MODEL_RESOLVE."""

from contextlib import aclosing

from spawnmesh.hook.v1 import decision_pb2
from spawnmesh.hook.v1 import run_hook_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.modifiers import ModelChoice, merge_models
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.messages import check_own_run


async def dispatch_before_model_resolve(
    request: pb.DispatchBeforeModelResolveRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeModelResolveResponse:
    """Return the first model that a plugin names, in order of priority.

    No plugin below that one is called. Raises NOT_FOUND for another run, and PluginFailed.
    """
    check_own_run(caller, request.event.session_id, request.event.run_id)
    choices: list[ModelChoice] = []
    answers = deps.dispatcher.answers(
        caller.tenant_id,
        HookKind.BEFORE_MODEL_RESOLVE,
        budget,
        request.event,
        request_builders.before_model_resolve,
    )
    async with aclosing(answers):
        async for access, answer in answers:
            choices.append(ModelChoice(access.plugin.name, answer.decision.model))
            if answer.decision.model:
                break
    choice = merge_models(choices)
    return pb.DispatchBeforeModelResolveResponse(
        decision=decision_pb2.ModelDecision(model=choice.model), decided_by=choice.plugin
    )
