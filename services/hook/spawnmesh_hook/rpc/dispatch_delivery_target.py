"""DispatchDeliveryTarget: call the plugins for DELIVERY_TARGET."""

from contextlib import aclosing

from spawnmesh.hook.v1 import delivery_target_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.modifiers import TargetChoice, merge_targets
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.operations import request_builders
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies


async def dispatch_delivery_target(
    request: pb.DispatchDeliveryTargetRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchDeliveryTargetResponse:
    """Return the first target that a plugin names, in order of priority. Raises PluginFailed.

    No plugin below that one is called. Only the delivery log is stored.
    """
    choices: list[TargetChoice] = []
    answers = deps.dispatcher.answers(
        caller.tenant_id, HookKind.DELIVERY_TARGET, budget, request.event, request_builders.delivery_target
    )
    async with aclosing(answers):
        async for access, answer in answers:
            choices.append(TargetChoice(access.plugin.name, answer.decision.target))
            if answer.decision.target:
                break
    choice = merge_targets(choices)
    return pb.DispatchDeliveryTargetResponse(
        decision=pb.DeliveryTargetDecision(target=choice.target), decided_by=choice.plugin
    )
