"""What each verb does, in one transaction each."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import payload_store, store, summary_store, tenant_store, writer_store
from spawnmesh_transcript.bodies import serialize
from spawnmesh_transcript.context import Chosen, Stale, choose_context, choose_fork
from spawnmesh_transcript.context_texts import accompanying_token_count
from spawnmesh_transcript.domain.dropped import LeftOut, older
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.families import Measure, Told, Vocabulary, measure_of, tell
from spawnmesh_transcript.domain.refusals import claim_lost, other_origin, tenant_purged, transcript_deleted
from spawnmesh_transcript.domain.tier import TailLimits
from spawnmesh_transcript.domain.turns import Group, Turn, turns_of
from spawnmesh_transcript.messages import message_entry
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.prepare import masked_copies
from spawnmesh_transcript.store import Filter, Key, Position
from spawnmesh_transcript.summary_store import Summary
from spawnmesh_transcript.synthetic import synthetic_result
from spawnmesh_transcript.whole import whole_entries

PAGE_MAX_BYTES = 4 * 1024 * 1024
"""Bodies in one page; far enough below what the transport takes for any page of small entries."""


@dataclass(frozen=True, slots=True)
class Fork:
    """What to copy into a new transcript."""

    source_session_id: str
    max_token_count: int
    up_to_seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries by seq, where the transcript stands, and whether there are more beyond."""

    entries: list[StoredEntry]
    head: Head
    has_more: bool


@dataclass(frozen=True, slots=True)
class StubbedResult:
    """A result that is read as references to these files, of so many bytes, and what it counts as it is stored."""

    entry_id: str
    seq: int
    file_ids: tuple[str, ...]
    size_bytes: int
    full_token_count: int


@dataclass(frozen=True, slots=True)
class Context:
    """What a model reads: groups oldest first, and the stored entries of their turns by seq."""

    groups: tuple[Group, ...]
    entries: dict[int, StoredEntry]
    dropped_entry_count: int
    superseded_entry_count: int
    stale: Stale
    compact_at_percent: int
    accompanying_token_count: int
    measure: Measure
    """Of all counts here, also those of `entries`."""
    told: Told
    stubbed: tuple[StubbedResult, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """In order; only for tenants with the tier."""
    summary: StoredEntry | None = None
    """Comes first, and counts what is read of it."""


async def create_transcript(
    database: Database, payloads: Payloads, key: Key, fork: Fork | None, *, parent_session_id: str, service: str
) -> Head:
    """Creates the transcript with its header and what is forked into it; answers where it stands if it is there already.

    Raises NOT_FOUND without the session to fork from, ALREADY_EXISTS for a transcript of another origin, TRANSCRIPT_DELETED for one that was
    deleted, UNKNOWN_TENANT while the tenant is being purged, and CONFLICT where something changed meanwhile and a repeat will do.
    """
    origin = fork.source_session_id if fork else ""
    incarnation = new_id(IdKind.INCARNATION)
    header = pb.Header(session_id=key.session_id, forked_from_session_id=origin, incarnation=incarnation)
    entries = [NewEntry(kind=EntryKind.HEADER, body=serialize(pb.EntryBody(header=header)))]
    if fork is None:
        begun = await store.begin_transcript(
            database,
            key,
            incarnation=incarnation,
            parent_session_id=parent_session_id,
            service=service,
            entries=entries,
        )
        if begun is not None:
            return begun
    forked = await _forked_entries(database, payloads, key, fork) if fork else _Forked(())
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        if not await store.insert_transcript(
            connection,
            key,
            incarnation=incarnation,
            forked_from_session_id=origin,
            parent_session_id=parent_session_id,
        ):
            if await store.is_deleted(connection, key):
                raise transcript_deleted(key.session_id)
            existing = await _transcript(connection, key)
            if existing.forked_from_session_id != origin:
                raise other_origin(key.session_id, existing.forked_from_session_id)
            return existing.head
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if forked is None:  # There was an import, which was given up meanwhile.
            raise MeshError(Reason.CONFLICT, "the transcript was just removed; create it again")
        if fork and policy.mask_secrets and not forked.is_masked:
            raise MeshError(Reason.CONFLICT, "the tenant's settings just changed; create the transcript again")
        entries += forked.entries
        head = await store.write_entries(connection, key, entries, service=service)
        has_payloads = False
        if fork:
            has_payloads = await payloads.insert_forked(connection, key, entries, policy, first_seq=1)
    if has_payloads:
        payloads.put_waiting(key)
    return head


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> Head:
    """Makes the claim the current one. Raises WRITER_CLAIM_LOST for one that is too low, and NOT_FOUND."""
    acquired = await writer_store.acquire_writer(database, key, claim)
    if acquired is None:
        raise not_found("transcript", key.session_id)
    head, is_held = acquired
    if not is_held:
        raise claim_lost(head)
    return head


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> Head:
    """Ends the claim and every lower one, acquired or not: none of them is the current one from then on. Raises NOT_FOUND."""
    head = await writer_store.release_writer(database, key, claim)
    if head is None:
        raise not_found("transcript", key.session_id)
    return head


async def list_entries(
    database: Database, payloads: Payloads, key: Key, position: Position, choice: Filter, *, page_size: int
) -> Page:
    """A page of whole entries, and where the transcript stands. Raises NOT_FOUND, and what making them whole raises."""
    page = await list_stored_entries(database, key, position, choice, page_size=page_size)
    return replace(page, entries=await whole_entries(database, payloads, key, page.entries))


async def list_stored_entries(
    database: Database, key: Key, position: Position, choice: Filter, *, page_size: int
) -> Page:
    """As `list_entries`, as they are stored: payloads that are in the blob store alone are not in their bodies."""
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        transcript = await _transcript(connection, key)
        entries, has_more = await store.list_entries(
            connection, key, position, choice, page_size=page_size, max_bytes=PAGE_MAX_BYTES
        )
        return Page(entries, transcript.head, has_more)


async def assemble_context(
    database: Database,
    payloads: Payloads,
    key: Key,
    *,
    token_budget: int,
    accompanying_texts: Sequence[str],
    model: str,
    tail: TailLimits,
) -> Context:
    """What a model should read, within the budget beside the texts, of which nothing may be left, or less; in that model's tokens.

    Without a model, in those of the tenant's vocabulary. Raises NOT_FOUND.
    """
    measure = measure_of(model) if model else None
    accompanying = 0
    if accompanying_texts:
        measure = measure or await _tenants_measure(database, key.tenant_id)
        accompanying = await accompanying_token_count(accompanying_texts, measure)
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        transcript = await _transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        has_tier = policy.stub_large_tool_payloads
        measure = measure or Measure(policy.token_vocabulary)
        chosen = await choose_context(
            connection,
            key,
            transcript,
            token_budget=token_budget - accompanying,
            measure=measure,
            tail=tail,
            with_references=has_tier,
        )
        entries, stubbed = await _tiered_entries(connection, key, chosen)
        summary = await _summary_entry(connection, key, chosen.summary)
        covered_seq, turn_count, superseded_count = 0, transcript.turn_count, transcript.superseded_turn_count
        if chosen.summary:
            covered_seq = chosen.summary.last_source_seq
            turn_count -= chosen.summary.covered_turn_count
            superseded_count = await summary_store.count_superseded(connection, key, after_seq=covered_seq)
    if not all(map(measure.takes, chosen.counted_by)):
        entries = _counted_as_chosen(entries, chosen)
    cold = [entry for entry in entries.values() if entry.dropped_bytes]
    entries |= {entry.seq: entry for entry in await whole_entries(database, payloads, key, cold)}
    if chosen.has_waiting_stubs:
        payloads.put_waiting(key)
    read_count = sum(seq > covered_seq for seq in entries)
    dropped_count = turn_count - superseded_count - chosen.unmatched_count - read_count
    return Context(
        chosen.groups,
        entries,
        dropped_entry_count=dropped_count,
        superseded_entry_count=superseded_count,
        stale=chosen.stale,
        compact_at_percent=policy.compact_at_percent,
        accompanying_token_count=accompanying,
        measure=measure,
        told=tell(measure, chosen.counted_by),
        stubbed=stubbed,
        left_out=(
            *older(chosen.begin_seq, transcript.head.seq, dropped_count, covered_seq=covered_seq),
            *chosen.left_out,
        )
        if has_tier
        else (),
        summary=summary,
    )


async def _tenants_measure(database: Database, tenant_id: str) -> Measure:
    """The measure of the tenant's vocabulary, in a transaction of its own: what is counted by it may take long."""
    async with database.transaction(tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, tenant_id)
    return Measure(policy.token_vocabulary)


def _counted_as_chosen(entries: dict[int, StoredEntry], chosen: Chosen) -> dict[int, StoredEntry]:
    """The entries with the counts that they were chosen by."""
    return entries | {
        turn.seq: entries[turn.seq]._replace(token_count=turn.token_count)
        for turn in turns_of(chosen.groups)
        if entries[turn.seq].token_count != turn.token_count
    }


async def _summary_entry(connection: Connection, key: Key, summary: Summary | None) -> StoredEntry | None:
    if summary is None:
        return None
    entries = await _entries_by_seq(connection, key, [summary.seq])
    return entries[summary.seq]._replace(token_count=summary.token_count)


async def _tiered_entries(
    connection: Connection, key: Key, chosen: Chosen
) -> tuple[dict[int, StoredEntry], tuple[StubbedResult, ...]]:
    """The entries of the groups, with references in the results that are to be read so; the bodies of those are not read."""
    turns = [*turns_of(chosen.groups)]
    whole = [turn.seq for turn in turns if turn.seq not in chosen.stubbed]
    entries = await _entries_by_seq(connection, key, whole)
    seqs = [turn.seq for turn in turns if turn.seq in chosen.stubbed]
    if not seqs:
        return entries, ()
    entries |= {entry.seq: entry for entry in await payload_store.read_stubbed_entries(connection, key, seqs)}
    files = await payload_store.files_of_entries(connection, key, seqs)
    return entries, tuple(
        StubbedResult(
            entries[seq].entry_id,
            seq,
            tuple(file.file_id for file in files[seq]),
            sum(file.size_bytes for file in files[seq]),
            chosen.full_token_counts[seq],
        )
        for seq in seqs
    )


async def _transcript(connection: Connection, key: Key) -> store.Transcript:
    transcript = await store.read_transcript(connection, key)
    if transcript is None:
        raise not_found("transcript", key.session_id)
    return transcript


async def _entries_of(connection: Connection, key: Key, groups: Sequence[Group]) -> dict[int, StoredEntry]:
    seqs = [member.seq for group in groups for member in group.members if isinstance(member, Turn)]
    return await _entries_by_seq(connection, key, seqs)


async def _entries_by_seq(connection: Connection, key: Key, seqs: Sequence[int]) -> dict[int, StoredEntry]:
    entries = {entry.seq: entry for entry in await store.read_entries(connection, key, seqs)}
    if len(entries) != len(
        seqs
    ):  # A fork reads its source without a lock: it was deleted between choosing and reading.
        raise not_found("transcript", key.session_id)
    return entries


@dataclass(frozen=True, slots=True)
class _Forked:
    """Copies of another transcript's messages, and whether they are without secrets."""

    entries: Sequence[NewEntry]
    is_masked: bool = False


async def _forked_entries(database: Database, payloads: Payloads, key: Key, fork: Fork) -> _Forked | None:
    """Copies of the source's newest messages, redacted as they are there, and masked as they would be now. Missing results are written down as
    what they are.

    None where there is a transcript already, whatever became of its source. Raises INVALID_REQUEST for a call that cannot be masked.
    """
    source = Key(key.tenant_id, fork.source_session_id)
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        if await store.has_begun(connection, key):
            return None
        await store.keep_index_order(connection)
        transcript = await _transcript(connection, source)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        chosen = await choose_fork(
            connection,
            source,
            transcript,
            max_token_count=fork.max_token_count,
            up_to_seq=fork.up_to_seq or transcript.head.seq,
        )
        stored = await _entries_of(connection, source, chosen.groups)
    stored = {entry.seq: entry for entry in await whole_entries(database, payloads, source, [*stored.values()])}
    copies = [_copies(group, stored) for group in chosen.groups]
    if policy.mask_secrets:
        copies = await asyncio.to_thread(masked_copies, copies, max_token_count=fork.max_token_count)
    return _Forked([copy for group in copies for copy in group], policy.mask_secrets)


def _copies(group: Group, stored: Mapping[int, StoredEntry]) -> list[NewEntry]:
    head = pb.EntryBody.FromString(stored[group.head.seq].body).message
    return [
        _copy(member, stored[member.seq].body)
        if isinstance(member, Turn)
        else message_entry(synthetic_result(head, member.call_id))
        for member in group.members
    ]


def _copy(turn: Turn, stored: bytes) -> NewEntry:
    """The message alone: the line that it was imported from names entries of its own file."""
    body = pb.EntryBody.FromString(stored)
    body.ClearField("source")
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(body),
        token_count=turn.token_count,
        token_vocabulary=Vocabulary(turn.counted_by),
        role=turn.role,
        calls=turn.calls,
        answers=turn.answers,
        is_synthetic=turn.is_synthetic,
    )
