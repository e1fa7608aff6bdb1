"""AssembleContext. Assembles what a model should read, oldest first, within the budget."""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import context_pb2 as context_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.caller import Caller

from spawnmesh_transcript.domain.compaction import is_due
from spawnmesh_transcript.domain.dropped import LeftOut, older
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.families import Measure, count_basis, measure_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Turn, turns_of
from spawnmesh_transcript.operations.accompanying_texts import accompanying_token_count
from spawnmesh_transcript.operations.bodies.synthetic_results import synthetic_result, synthetic_token_count
from spawnmesh_transcript.operations.context_selection import Chosen, choose_context
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.operations.result_cutting import ShortenedResult, cut_results
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.messages import parse_key, parse_tail, render_entry
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import planner
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store


@dataclass(frozen=True, slots=True)
class _StubbedResult:
    """A result that is read as references: its files, their size, and its own full count."""

    entry_id: str
    seq: int
    file_ids: tuple[str, ...]
    size_bytes: int
    full_token_count: int


@dataclass(frozen=True, slots=True)
class _Context:
    """The context that a model reads: the summary, the chosen groups, and the stored entries of
    their turns by seq.

    All counts are in `measure`, also those of `entries`.
    """

    chosen: Chosen
    summary: StoredEntry | None
    entries: dict[int, StoredEntry]
    stubbed: tuple[_StubbedResult, ...]
    cut: tuple[ShortenedResult, ...]
    left_out: tuple[LeftOut, ...]
    """In order; only for tenants with the tier."""
    dropped_entry_count: int
    superseded_entry_count: int
    accompanying_token_count: int
    compact_at_percent: int
    measure: Measure


async def assemble_context(
    request: pb.AssembleContextRequest, caller: Caller, deps: Dependencies
) -> pb.AssembleContextResponse:
    """Return what a model reads within the budget, counted in that model's tokens.

    Raises NOT_FOUND.

    The budget is reduced by the reserved tokens and by the accompanying texts; nothing or less may
    be left. Without a model, tokens are those of the tenant's vocabulary.
    """
    key = parse_key(request.session_id, caller)
    context = await _assemble(request, key, deps)
    if context.chosen.has_waiting_stubs:
        deps.uploader.start(key)
    deps.stub_metrics.stubbed(sum(result.size_bytes for result in context.stubbed))
    return _render(context, request)


async def _assemble(request: pb.AssembleContextRequest, key: Key, deps: Dependencies) -> _Context:
    measure = measure_of(request.model) if request.model else None
    accompanying = 0
    if request.accompanying_texts:
        measure = measure or await _tenant_measure(deps.database, key.tenant_id)
        accompanying = await accompanying_token_count(request.accompanying_texts, measure)
    async with deps.database.transaction(key.tenant_id) as connection:
        await planner.begin_snapshot(connection)
        transcript = await transcript_store.get_transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        has_tier = policy.stub_large_tool_payloads
        measure = measure or Measure(policy.token_vocabulary)
        chosen = await choose_context(
            connection,
            key,
            transcript,
            token_budget=request.token_budget - request.reserved_token_count - accompanying,
            measure=measure,
            tail=parse_tail(request.fresh_tail),
            with_references=has_tier,
        )
        entries, stubbed = await _read_chosen(connection, key, chosen)
        summary = await _read_summary(connection, key, chosen)
        covered_seq, turn_count, superseded_count = 0, transcript.turn_count, transcript.superseded_turn_count
        if chosen.summary:
            covered_seq = chosen.summary.last_source_seq
            turn_count -= chosen.summary.covered_turn_count
            superseded_count = await summary_store.count_superseded(connection, key, after_seq=covered_seq)
    if not all(map(measure.takes, chosen.counted_by)):
        entries = _counted_as_chosen(entries, chosen)
    externalized = [entry for entry in entries.values() if entry.dropped_bytes]
    complete = await rehydrate_entries(deps.database, deps.blobs, key, externalized)
    entries |= {entry.seq: entry for entry in complete}
    cut = await cut_results(deps.database, deps.blobs, key, chosen, measure) if chosen.cut else ()
    entries |= {one.entry.seq: one.entry for one in cut}
    read_count = sum(seq > covered_seq for seq in entries)
    dropped_count = turn_count - superseded_count - chosen.unmatched_count - read_count
    dropped = older(chosen.begin_seq, transcript.head.seq, dropped_count, covered_seq=covered_seq)
    return _Context(
        chosen,
        summary,
        entries,
        stubbed,
        cut,
        (*dropped, *chosen.left_out) if has_tier else (),
        dropped_entry_count=dropped_count,
        superseded_entry_count=superseded_count,
        accompanying_token_count=accompanying,
        compact_at_percent=policy.compact_at_percent,
        measure=measure,
    )


async def _tenant_measure(database: Database, tenant_id: str) -> Measure:
    """Return the measure of the tenant's vocabulary, read in a transaction of its own.

    The texts that are counted by it next may take long.
    """
    async with database.transaction(tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, tenant_id)
    return Measure(policy.token_vocabulary)


async def _read_chosen(
    connection: Connection, key: Key, chosen: Chosen
) -> tuple[dict[int, StoredEntry], tuple[_StubbedResult, ...]]:
    """Read the entries of the groups, except for the results that are cut.

    Results that are read as references are read without their own bodies.
    """
    turns = [turn for turn in turns_of(chosen.groups) if turn.seq not in chosen.cut]
    entries = await entry_store.get_entries(
        connection, key, [turn.seq for turn in turns if turn.seq not in chosen.stubbed]
    )
    seqs = [turn.seq for turn in turns if turn.seq in chosen.stubbed]
    if not seqs:
        return entries, ()
    entries |= {entry.seq: entry for entry in await payload_store.read_stubbed_entries(connection, key, seqs)}
    files = await payload_store.list_stored_files(connection, key, seqs)
    return entries, tuple(
        _StubbedResult(
            entries[seq].entry_id,
            seq,
            tuple(file.file_id for file in files[seq]),
            sum(file.size_bytes for file in files[seq]),
            chosen.full_token_counts[seq],
        )
        for seq in seqs
    )


async def _read_summary(connection: Connection, key: Key, chosen: Chosen) -> StoredEntry | None:
    """Read the summary's entry, with the token count of what is read of it."""
    if chosen.summary is None:
        return None
    entries = await entry_store.get_entries(connection, key, [chosen.summary.seq])
    return entries[chosen.summary.seq]._replace(token_count=chosen.summary.token_count)


def _counted_as_chosen(entries: dict[int, StoredEntry], chosen: Chosen) -> dict[int, StoredEntry]:
    """Return the entries with the counts that they were chosen by."""
    return entries | {
        turn.seq: entries[turn.seq]._replace(token_count=turn.token_count)
        for turn in turns_of(chosen.groups)
        if turn.seq not in chosen.cut and entries[turn.seq].token_count != turn.token_count
    }


def _render(context: _Context, request: pb.AssembleContextRequest) -> pb.AssembleContextResponse:
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
    response.compaction_due = chosen.stale.is_compactable and is_due(
        context.compact_at_percent,
        has_dropped=context.dropped_entry_count > 0,
        token_count=(response.token_count + request.reserved_token_count + context.accompanying_token_count),
        token_budget=request.token_budget,
    )
    return response


def _render_stubbed(stubbed: _StubbedResult) -> context_pb.StubbedResult:
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
