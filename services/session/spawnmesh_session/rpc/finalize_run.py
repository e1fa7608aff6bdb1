"""FinalizeRun. Offers a draft, which was appended before, as the answer."""

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_session.domain.drafts import Draft, Interrupted, MessagesPending, Revision
from spawnmesh_session.operations.callers import require_epoch
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import parse_usage, render_run


async def finalize_run(
    request: pb.FinalizeRunRequest, caller: Caller, deps: Dependencies
) -> pb.FinalizeRunResponse:
    """Offer a draft as the answer: accepted, to be revised, or not, since messages wait or a caller
    interrupted the run.
    """
    match await deps.finalize_saga.finalize(caller.tenant_id, _parse_draft(request, caller)):
        case Revision(instruction, number, max_revision_count):
            revision = pb.Revision(
                instruction=instruction, number=number, max_revision_count=max_revision_count
            )
            return pb.FinalizeRunResponse(revise=revision)
        case MessagesPending(count):
            return pb.FinalizeRunResponse(messages_pending=pb.MessagesPending(count=count))
        case Interrupted():
            return pb.FinalizeRunResponse(interrupted=pb.Interrupted())
        case run:
            return pb.FinalizeRunResponse(accepted=pb.Accepted(run=render_run(run)))


def _parse_draft(request: pb.FinalizeRunRequest, caller: Caller) -> Draft:
    require_epoch(caller, request.epoch)
    return Draft(
        caller.run_id,
        request.epoch,
        request.draft_entry_id,
        request.draft_text,
        parse_usage(request.usage),
        has_final_effects=request.has_final_effects,
        is_last_turn=request.is_last_turn,
    )
