"""CompactAsWriter. Summarizes what is no longer fresh, under the claim of a run."""

from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.operations.compaction.compact import CompactionRequest
from spawnmesh_transcript.operations.compaction.summary_append import CompactionRequester
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, parse_tail, render_entry, render_head


async def compact_as_writer(
    request: pb.CompactAsWriterRequest, caller: Caller, deps: Dependencies
) -> pb.CompactAsWriterResponse:
    """Summarize the oldest entries that are not fresh, as many as one compaction can.

    The response has a summary, the refusal of a plugin, or neither if there is too little to
    summarize. Raises NOT_FOUND, WRITER_CLAIM_LOST, CONFLICT if another compaction was first,
    DEPENDENCY_UNAVAILABLE, PLUGIN_FAILED, POOL_EXHAUSTED, and the router's MeshError, such as
    SESSION_BUDGET_EXCEEDED for a run whose budget is used up.
    """
    key = parse_key(request.session_id, caller)
    wanted = CompactionRequest(
        CompactionRequester(parse_claim(request.claim, caller), ""),
        parse_tail(request.fresh_tail),
        request.models,
        budget_run_id=caller.run_id if caller.has_budget else "",
        agent_id=caller.agent_id,
    )
    outcome = await deps.compactor.compact(key, wanted)
    response = pb.CompactAsWriterResponse(head=render_head(outcome.head))
    if outcome.refusal:
        response.refused_by = outcome.refusal.plugin_id
        response.refusal = outcome.refusal.reason
    if outcome.summary:
        render_entry(outcome.summary.entry, response.summary)
    return response
