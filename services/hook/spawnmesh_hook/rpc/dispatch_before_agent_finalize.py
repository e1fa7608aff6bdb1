"""DispatchBeforeAgentFinalize: decide whether a draft is final."""

from spawnmesh.hook.v1 import decision_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1.revision_pb2 import CappedRevision, RevisionCap
from spawnmesh_core.errors import invalid
from spawnmesh_runtime.caller import Caller

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT, Decision, FinalizeAnswer
from spawnmesh_hook.operations.time_budget import TimeBudget
from spawnmesh_hook.rpc.dependencies import Dependencies


async def dispatch_before_agent_finalize(
    request: pb.DispatchBeforeAgentFinalizeRequest, caller: Caller, deps: Dependencies, budget: TimeBudget
) -> pb.DispatchBeforeAgentFinalizeResponse:
    """Return the stored decision about the draft, or call the plugins and store a new one.

    Raises INVALID_REQUEST, PluginFailed and DispatchInProgress.
    """
    if not request.event.run_id:
        raise invalid("event.run_id", "must name the run, since revisions are counted by run")
    return _render(
        await deps.finalize_gate.decide(caller.tenant_id, request.event, request.request_id, budget)
    )


def _render(decision: Decision) -> pb.DispatchBeforeAgentFinalizeResponse:
    message = decision_pb2.FinalizeDecision()
    match decision.answer:
        case FinalizeAnswer.CONTINUE:
            getattr(message, "continue").SetInParent()
        case FinalizeAnswer.REVISE:
            message.revise.reason = decision.reason
        case FinalizeAnswer.FINALIZE:
            message.finalize.SetInParent()
            message.finalize.reason = decision.reason
    return pb.DispatchBeforeAgentFinalizeResponse(
        decision=message,
        decided_by=decision.decided_by,
        revision_number=decision.revision_number,
        max_revision_count=MAX_REVISION_COUNT,
        capped_revisions=[
            CappedRevision(plugin=capped.plugin, cap=RevisionCap.Value(f"REVISION_CAP_{capped.cap}"))
            for capped in decision.capped_revisions
        ],
    )
