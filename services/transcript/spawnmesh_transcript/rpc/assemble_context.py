"""AssembleContext. Assembles what a model should read, oldest first, within the budget."""

from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.compaction import is_due
from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.left_out import LeftOut
from spawnmesh_transcript.domain.token_vocabularies import count_basis
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Turn
from spawnmesh_transcript.operations.bodies.synthetic_results import synthetic_result, synthetic_token_count
from spawnmesh_transcript.operations.context_assembly import (
    AssembledContext,
    ContextRequest,
    StubbedResult,
    assemble,
)
from spawnmesh_transcript.operations.result_cutting import ShortenedResult
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key, parse_tail, render_entry


async def assemble_context(
    request: pb.AssembleContextRequest, caller: Caller, deps: Dependencies
) -> pb.AssembleContextResponse:
    """Return what a model reads within the budget, counted in that model's tokens.

    Starts the upload of payloads that references wait for. Raises NOT_FOUND, and INVALID_REQUEST
    for a seq beyond the end.
    """
    _, response = await read_context(request, parse_key(request.session_id, caller), deps)
    return response


async def read_context(
    request: pb.AssembleContextRequest, key: Key, deps: Dependencies, claim: WriterClaim | None = None
) -> tuple[Head, pb.AssembleContextResponse]:
    """Return the context and the head of its snapshot. Make the claim the current one if it is
    higher.

    Raises what AssembleContext raises, and WRITER_CLAIM_LOST for a claim that is too low.
    """
    wanted = ContextRequest(
        model=request.model,
        token_budget=request.token_budget,
        reserved_token_count=request.reserved_token_count,
        accompanying_texts=request.accompanying_texts,
        tail=parse_tail(request.fresh_tail),
        up_to_seq=request.up_to_seq,
    )
    context = await assemble(deps.database, deps.blobs, key, wanted, claim)
    if context.has_retracted:
        deps.notifier.draft_changed(key)
    if context.chosen.has_waiting_stubs:
        deps.uploader.start(key)
    deps.stub_metrics.stubbed(sum(result.size_bytes for result in context.stubbed))
    return context.head, _render(context, request)


def _render(context: AssembledContext, request: pb.AssembleContextRequest) -> pb.AssembleContextResponse:
    """Render the summary and the groups in order, with an error in place of each missing result."""
    chosen, basis = context.chosen, count_basis(context.measure, context.chosen.counted_by)
    response = pb.AssembleContextResponse(
        dropped_entry_count=context.dropped_entry_count,
        superseded_entry_count=context.superseded_entry_count,
        accompanying_token_count=context.accompanying_token_count,
        is_estimate=basis.is_estimate,
        token_vocabulary=basis.vocabulary,
        stubbed=map(_render_stubbed, context.stubbed),
        cut=map(_render_cut, context.cut),
        dropped=map(_render_left_out, context.left_out),
    )
    missing_token_count = synthetic_token_count(context.measure)
    add = response.entries.add
    if context.summary:
        render_entry(context.summary, add())
        response.token_count += context.summary.token_count
    for group in chosen.groups:
        head = add()
        render_entry(context.entries[group.head.seq], head)
        response.token_count += head.token_count
        for result in group.results:
            if isinstance(result, Turn):
                entry = context.entries[result.seq]
                render_entry(entry, add())
                response.token_count += entry.token_count
            else:
                message = synthetic_result(head.body.message, result.call_id)
                add(body=entry_pb.EntryBody(message=message), token_count=missing_token_count)
                response.token_count += missing_token_count
                response.synthetic_result_count += 1
    response.fresh_seq = chosen.stale.seq + 1 if chosen.stale.seq else 0
    response.compaction_due = (
        not request.up_to_seq
        and chosen.stale.is_compactable
        and is_due(
            context.compact_at_percent,
            has_dropped=context.dropped_entry_count > 0,
            token_count=(
                response.token_count + request.reserved_token_count + context.accompanying_token_count
            ),
            token_budget=request.token_budget,
        )
    )
    return response


def _render_stubbed(stubbed: StubbedResult) -> context_pb.StubbedResult:
    return context_pb.StubbedResult(
        entry_id=stubbed.entry_id,
        seq=stubbed.seq,
        file_ids=stubbed.file_ids,
        full_token_count=stubbed.full_token_count,
    )


def _render_cut(cut: ShortenedResult) -> context_pb.CutResult:
    return context_pb.CutResult(
        entry_id=cut.entry.entry_id,
        seq=cut.entry.seq,
        file_ids=cut.file_ids,
        full_token_count=cut.full_token_count,
        shown_bytes=cut.shown_bytes,
        size_bytes=cut.size_bytes,
    )


def _render_left_out(left_out: LeftOut) -> context_pb.DroppedEntries:
    return context_pb.DroppedEntries(
        first_seq=left_out.first_seq,
        last_seq=left_out.last_seq,
        entry_count=left_out.entry_count,
        cause=context_pb.DropCause.Value(f"DROP_CAUSE_{left_out.cause}"),
    )
