"""TierTranscript.

Moves large payloads of a transcript between the database and the blob store, some entries for each
call: continue with `next_after_seq` until `done`.
"""

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.tier_report import TierAction
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key

_DEFAULT_ENTRY_COUNT = 1_000
_ACTIONS = {
    pb.TIER_ACTION_DRY_RUN: TierAction.DRY_RUN,
    pb.TIER_ACTION_APPLY: TierAction.APPLY,
    pb.TIER_ACTION_REVERT: TierAction.REVERT,
}


async def tier_transcript(
    request: pb.TierTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.TierTranscriptResponse:
    """Move payloads of some entries to the blob store, or back; the caller repeats the call until
    it is done.
    """
    report = await deps.tiering.tier(
        parse_key(request.session_id, caller),
        _ACTIONS[request.action],
        after_seq=request.after_seq,
        max_entry_count=request.max_entry_count or _DEFAULT_ENTRY_COUNT,
    )
    return pb.TierTranscriptResponse(
        examined_entry_count=report.examined_entry_count,
        externalized_entry_count=report.externalized_entry_count,
        cooled_entry_count=report.cooled_entry_count,
        cooled_bytes=report.cooled_bytes,
        reverted_entry_count=report.reverted_entry_count,
        reverted_bytes=report.reverted_bytes,
        failed_entry_count=report.failed_entry_count,
        failure_reason=report.failure_reason,
        next_after_seq=report.next_after_seq,
        condensed_entry_count=report.condensed_entry_count,
        done=report.done,
    )
