"""The assembly of a context: what a model should read, oldest first, within the budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import Head, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.left_out import LeftOut, older
from spawnmesh_transcript.domain.refusals import claim_lost
from spawnmesh_transcript.domain.stale_results import TailLimits
from spawnmesh_transcript.domain.token_vocabularies import Measure, measure_of
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import turns_of
from spawnmesh_transcript.domain.writers import is_current
from spawnmesh_transcript.operations.accompanying_texts import accompanying_token_count
from spawnmesh_transcript.operations.bodies.condensed import named_files, without_thinking
from spawnmesh_transcript.operations.context_selection import Chosen, choose_context
from spawnmesh_transcript.operations.rehydration import rehydrate_entries
from spawnmesh_transcript.operations.result_cutting import ShortenedResult, cut_results
from spawnmesh_transcript.store import entries as entry_store
from spawnmesh_transcript.store import payloads as payload_store
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store.context_heads import ContextHead, open_context


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """The budget in tokens, what else it must hold, and the model that reads the context.

    `model` is empty if it is not known. With `up_to_seq`, the context is that of the time when the
    transcript ended there; 0 is now.
    """

    model: str
    token_budget: int
    reserved_token_count: int
    accompanying_texts: Sequence[str]
    tail: TailLimits
    up_to_seq: int = 0


@dataclass(frozen=True, slots=True)
class StubbedResult:
    """An entry that is read by reference or condensed: its files, the bytes that are left out, and
    its own full count.
    """

    entry_id: str
    seq: int
    file_ids: tuple[str, ...]
    size_bytes: int
    full_token_count: int


@dataclass(frozen=True, slots=True)
class AssembledContext:
    """The context that a model reads: the summary, the chosen groups, and the stored entries of
    their turns by seq.

    All counts are in `measure`, also those of `entries`.
    """

    chosen: Chosen
    summary: StoredEntry | None
    entries: dict[int, StoredEntry]
    stubbed: tuple[StubbedResult, ...]
    cut: tuple[ShortenedResult, ...]
    left_out: tuple[LeftOut, ...]
    """In order; only for tenants with the tier."""
    dropped_entry_count: int
    superseded_entry_count: int
    accompanying_token_count: int
    compact_at_percent: int
    measure: Measure
    head: Head
    """The head of the transcript in the snapshot that the context was read from."""
    has_retracted: bool = False
    """The claim that was replaced had a draft."""


async def assemble(
    database: Database, blobs: BlobStore, key: Key, request: ContextRequest, claim: WriterClaim | None = None
) -> AssembledContext:
    """Return the context within the budget, counted in the model's tokens. Make the claim the
    current one if it is higher.

    Raises NOT_FOUND, INVALID_REQUEST for a seq beyond the end, and WRITER_CLAIM_LOST for a claim
    that is too low.

    The budget is reduced by the reserved tokens and by the accompanying texts; nothing or less may
    be left. Without a model, tokens are those of the tenant's vocabulary.
    """
    measure = measure_of(request.model) if request.model else None
    accompanying = 0
    if request.accompanying_texts:
        measure = measure or await _tenant_measure(database, key.tenant_id)
        accompanying = await accompanying_token_count(request.accompanying_texts, measure)
    opening = open_context(database, key, up_to_seq=request.up_to_seq, claim=claim)
    async with opening as (connection, head):
        measure = measure or Measure(head.policy.token_vocabulary)
        is_writer = claim is None or is_current(claim, head.transcript.head)
        read = await _read(connection, key, head, request, accompanying, measure) if is_writer else None
    # An error in the block would undo the transaction, and the connection would plan its statements
    # anew.
    if read is None:
        raise claim_lost(head.transcript.head)
    chosen, entries = read.chosen, read.entries
    if not all(map(measure.takes, chosen.counted_by)):
        entries = _counted_as_chosen(entries, chosen)
    externalized = [entry for entry in entries.values() if entry.dropped_bytes]
    complete = await rehydrate_entries(database, blobs, key, externalized)
    entries |= {entry.seq: entry for entry in complete}
    cut = await cut_results(database, blobs, key, chosen, measure) if chosen.cut else ()
    entries |= {one.entry.seq: one.entry for one in cut}
    read_count = sum(seq > read.covered_seq for seq in entries)
    dropped_count = read.turn_count - read.superseded_count - chosen.unmatched_count - read_count
    dropped = older(chosen.begin_seq, head.transcript.head.seq, dropped_count, covered_seq=read.covered_seq)
    return AssembledContext(
        chosen,
        read.summary,
        entries,
        read.stubbed,
        cut,
        (*dropped, *chosen.left_out) if head.policy.stub_large_tool_payloads else (),
        dropped_entry_count=dropped_count,
        superseded_entry_count=read.superseded_count,
        accompanying_token_count=accompanying,
        compact_at_percent=head.policy.compact_at_percent,
        measure=measure,
        head=head.transcript.head,
        has_retracted=head.has_retracted,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A context as its snapshot has it. The counts are of what the summary does not cover."""

    chosen: Chosen
    entries: dict[int, StoredEntry]
    stubbed: tuple[StubbedResult, ...]
    summary: StoredEntry | None
    covered_seq: int
    turn_count: int
    superseded_count: int


async def _read(
    connection: Connection,
    key: Key,
    head: ContextHead,
    request: ContextRequest,
    accompanying_token_count: int,
    measure: Measure,
) -> _Read:
    chosen = await choose_context(
        connection,
        key,
        head,
        token_budget=request.token_budget - request.reserved_token_count - accompanying_token_count,
        measure=measure,
        tail=request.tail,
    )
    entries, stubbed = await _read_chosen(connection, key, chosen)
    summary = await _read_summary(connection, key, chosen)
    transcript = head.transcript
    if not chosen.summary:
        return _Read(
            chosen,
            entries,
            stubbed,
            summary,
            covered_seq=0,
            turn_count=transcript.turn_count,
            superseded_count=transcript.superseded_turn_count,
        )
    covered_seq = chosen.summary.last_source_seq
    superseded_count = await summary_store.count_superseded(
        connection, key, after_seq=covered_seq, up_to_seq=request.up_to_seq
    )
    turn_count = transcript.turn_count - chosen.summary.covered_turn_count
    return _Read(chosen, entries, stubbed, summary, covered_seq, turn_count, superseded_count)


async def _tenant_measure(database: Database, tenant_id: str) -> Measure:
    """Return the measure of the tenant's vocabulary, read in a transaction of its own.

    The texts that are counted by it next may take long.
    """
    async with database.transaction(tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, tenant_id)
    return Measure(policy.token_vocabulary)


async def _read_chosen(
    connection: Connection, key: Key, chosen: Chosen
) -> tuple[dict[int, StoredEntry], tuple[StubbedResult, ...]]:
    """Read the entries of the groups, except for the results that are cut.

    Entries that are read by reference or condensed are read without their own bodies.
    """
    turns = [turn for turn in turns_of(chosen.groups) if turn.seq not in chosen.cut]
    all_seqs = [turn.seq for turn in turns]
    seqs = [seq for seq in all_seqs if seq in chosen.stubbed]
    entries = await entry_store.get_entries(connection, key, all_seqs, bodiless=seqs)
    if not seqs:
        return entries, ()
    stubs = await payload_store.read_stubs(connection, key, seqs, among=all_seqs)
    files = await payload_store.list_stored_files(
        connection, key, [stub.seq for stub in stubs if not stub.file_id]
    )
    stubbed: list[StubbedResult] = []
    for stub in sorted(stubs):
        body, thinking = stub.body, chosen.thinking.get(stub.seq, 0)
        if thinking:
            body = without_thinking(body)
        entry = entries[stub.seq]._replace(body=body, token_count=stub.token_count - thinking)
        entries[stub.seq] = entry
        full = chosen.full_turns[stub.seq]
        if stub.file_id:
            file_ids = named_files(body, stub.file_id)
            size_bytes = full.size_bytes - len(body)
        else:
            file_ids = [file.file_id for file in files[stub.seq]]
            size_bytes = sum(file.size_bytes for file in files[stub.seq])
        stubbed.append(StubbedResult(entry.entry_id, stub.seq, tuple(file_ids), size_bytes, full.token_count))
    return entries, tuple(stubbed)


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
