"""CompactTranscript. Summarizes what is no longer fresh."""

import asyncio

from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_transcript.domain.refusals import run_without_claim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.compaction.compact import (
    CompactionOutcome,
    CompactionRequest,
    Compactor,
)
from spawnmesh_transcript.operations.compaction.summary_append import CompactionRequester
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_claim, parse_key, parse_tail, render_entry, render_head

_UNRECORDED = (
    Reason.NOT_FOUND,
    Reason.WRITER_CLAIM_LOST,
    Reason.CONFLICT,
    Reason.SESSION_BUDGET_EXCEEDED,
)
"""Refusals: they are no failures of a compaction."""


async def compact_transcript(
    request: pb.CompactTranscriptRequest, caller: Caller, deps: Dependencies
) -> pb.CompactTranscriptResponse:
    """Summarize the oldest entries that are not fresh, as many as one compaction can.

    The response has a summary, the refusal of a plugin, or neither if there is too little to
    summarize. Raises NOT_FOUND, WRITER_CLAIM_LOST, CONFLICT if another run writes the transcript or
    another compaction was first, DEPENDENCY_UNAVAILABLE, PLUGIN_FAILED, POOL_EXHAUSTED, and the
    router's MeshError, such as SESSION_BUDGET_EXCEEDED for a run whose budget is used up.
    """
    key = parse_key(request.session_id, caller)
    requester = _parse_requester(request, caller)
    wanted = CompactionRequest(
        requester,
        parse_tail(request.fresh_tail),
        request.models,
        budget_run_id=caller.run_id if caller.has_budget else "",
        agent_id=caller.agent_id,
    )
    compactor = Compactor(deps.database, deps.bulk_threads, deps.model_router, deps.hooks)
    try:
        outcome = await compactor.compact(key, wanted)
    except (MeshError, asyncio.CancelledError) as error:
        _record_failure(deps, key, error.reason if isinstance(error, MeshError) else Reason.CANCELLED)
        raise
    _record(deps, key, outcome)
    return _render(outcome)


def _parse_requester(request: pb.CompactTranscriptRequest, caller: Caller) -> CompactionRequester:
    if request.HasField("claim"):
        return CompactionRequester(parse_claim(request.claim, caller), "")
    if caller.kind is CallerKind.RUN:
        raise run_without_claim()
    return CompactionRequester(None, caller.subject)


def _record_failure(deps: Dependencies, key: Key, reason: Reason) -> None:
    if reason not in _UNRECORDED:
        failed = activity_pb.Failed(action=activity_pb.FAILED_ACTION_COMPACT, reason=reason)
        deps.activities.record_later(key, activity_pb.Activity(failed=failed))
        deps.compaction_metrics.compacted(outcome="failed")


def _record(deps: Dependencies, key: Key, outcome: CompactionOutcome) -> None:
    summary = outcome.summary
    if summary is None:
        deps.compaction_metrics.compacted(outcome="refused" if outcome.refusal else "nothing")
        return
    deps.notifier.transcript_changed(key)
    compacted = activity_pb.Compacted(
        entry_id=summary.entry.entry_id, sources=summary.sources, token_count=summary.entry.token_count
    )
    deps.activities.record_later(key, activity_pb.Activity(compacted=compacted))
    deps.compaction_metrics.compacted(outcome="compacted", method=summary.method.lower())


def _render(outcome: CompactionOutcome) -> pb.CompactTranscriptResponse:
    response = pb.CompactTranscriptResponse(head=render_head(outcome.head))
    if outcome.refusal:
        response.refused_by = outcome.refusal.plugin_id
        response.refusal = outcome.refusal.reason
    if outcome.summary:
        render_entry(outcome.summary.entry, response.summary)
    return response
