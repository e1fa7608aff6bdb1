"""What each verb does, in one transaction each."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import payload_store, store, tenant_store
from spawnmesh_transcript.bodies import serialize
from spawnmesh_transcript.context import Chosen, choose_context, choose_fork
from spawnmesh_transcript.domain.dropped import LeftOut, older
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry, StoredEntry, WriterClaim
from spawnmesh_transcript.domain.refusals import claim_lost, other_origin, tenant_purged, transcript_deleted
from spawnmesh_transcript.domain.tier import TailLimits
from spawnmesh_transcript.domain.turns import Group, Turn
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.prepare import message_entry
from spawnmesh_transcript.store import Filter, Key, Position
from spawnmesh_transcript.synthetic import synthetic_result

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
    stubbed: tuple[StubbedResult, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """In order; only for tenants with the tier."""


async def create_transcript(
    database: Database, payloads: Payloads, key: Key, fork: Fork | None, *, parent_session_id: str, service: str
) -> Head:
    """Creates the transcript with its header and what is forked into it; answers where it stands if it is there already.

    Raises NOT_FOUND without the session to fork from, ALREADY_EXISTS for a transcript of another origin, TRANSCRIPT_DELETED for one that was
    deleted, and UNKNOWN_TENANT while the tenant is being purged.
    """
    origin = fork.source_session_id if fork else ""
    incarnation = new_id(IdKind.INCARNATION)
    header = pb.Header(session_id=key.session_id, forked_from_session_id=origin, incarnation=incarnation)
    entries = [NewEntry(kind=EntryKind.HEADER, body=serialize(pb.EntryBody(header=header)))]
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
        if fork:
            entries += await _forked_entries(connection, Key(key.tenant_id, fork.source_session_id), fork)
        head = await store.write_entries(connection, key, entries, service=service)
        has_payloads = False
        if fork:
            policy = await tenant_store.read_policy(connection, key.tenant_id)
            has_payloads = await payloads.insert_forked(connection, key, entries, policy, first_seq=1)
    if has_payloads:
        payloads.put_waiting(key)
    return head


async def acquire_writer(database: Database, key: Key, claim: WriterClaim) -> Head:
    """Makes the claim the current one. Raises WRITER_CLAIM_LOST for one that is too low, and NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        head = await store.acquire_writer(connection, key, claim)
        if head is None:
            raise claim_lost((await _transcript(connection, key)).head)
        return head


async def release_writer(database: Database, key: Key, claim: WriterClaim) -> Head:
    """Ends the claim if it is the current one. Raises NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        await store.release_writer(connection, key, claim)
        return (await _transcript(connection, key)).head


async def list_entries(database: Database, key: Key, position: Position, choice: Filter, *, page_size: int) -> Page:
    """A page of entries, and where the transcript stands. Raises NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        transcript = await _transcript(connection, key)
        entries, has_more = await store.list_entries(
            connection, key, position, choice, page_size=page_size, max_bytes=PAGE_MAX_BYTES
        )
        return Page(entries, transcript.head, has_more)


async def assemble_context(
    database: Database, payloads: Payloads, key: Key, *, token_budget: int, tail: TailLimits
) -> Context:
    """What a model should read, within the budget, of which nothing may be left. Raises NOT_FOUND."""
    async with database.transaction(key.tenant_id) as connection:
        await store.begin_snapshot(connection)
        transcript = await _transcript(connection, key)
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        limits = tail if policy.stub_large_tool_payloads else None
        chosen = await choose_context(connection, key, transcript, token_budget=token_budget, tail=limits)
        entries, stubbed = await _tiered_entries(connection, key, chosen)
    if chosen.has_waiting_stubs:
        payloads.put_waiting(key)
    readable_count = transcript.turn_count - transcript.superseded_turn_count - chosen.unmatched_count
    dropped_count = readable_count - len(entries)
    return Context(
        chosen.groups,
        entries,
        dropped_entry_count=dropped_count,
        superseded_entry_count=transcript.superseded_turn_count,
        stubbed=stubbed,
        left_out=(*older(chosen.begin_seq, transcript.head.seq, dropped_count), *chosen.left_out) if limits else (),
    )


async def _tiered_entries(
    connection: Connection, key: Key, chosen: Chosen
) -> tuple[dict[int, StoredEntry], tuple[StubbedResult, ...]]:
    """The entries of the groups, with references in the results that are to be read so; the bodies of those are not read."""
    turns = [member for group in chosen.groups for member in group.members if isinstance(member, Turn)]
    whole = [turn.seq for turn in turns if turn.seq not in chosen.stubbed]
    entries = await _entries_by_seq(connection, key, whole)
    seqs = [turn.seq for turn in turns if turn.seq in chosen.stubbed]
    if not seqs:
        return entries, ()
    full_counts = {}
    for entry, full_token_count in await payload_store.read_stubbed_entries(connection, key, seqs):
        entries[entry.seq], full_counts[entry.seq] = entry, full_token_count
    files = await payload_store.files_of_entries(connection, key, seqs)
    return entries, tuple(
        StubbedResult(
            entries[seq].entry_id,
            seq,
            tuple(file.file_id for file in files[seq]),
            sum(file.size_bytes for file in files[seq]),
            full_counts[seq],
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


async def _forked_entries(connection: Connection, source: Key, fork: Fork) -> list[NewEntry]:
    """Copies of the source's newest messages, as stored there: redacted already. Missing results are written down as what they are."""
    await store.keep_index_order(connection)
    transcript = await _transcript(connection, source)
    chosen = await choose_fork(
        connection,
        source,
        transcript,
        max_token_count=fork.max_token_count,
        up_to_seq=fork.up_to_seq or transcript.head.seq,
    )
    stored = await _entries_of(connection, source, chosen.groups)
    copies: list[NewEntry] = []
    for group in chosen.groups:
        head = pb.EntryBody.FromString(stored[group.head.seq].body).message
        for member in group.members:
            if isinstance(member, Turn):
                copies.append(_copy(member, stored[member.seq].body))
            else:
                copies.append(message_entry(synthetic_result(head, member.call_id)))
    return copies


def _copy(turn: Turn, stored: bytes) -> NewEntry:
    """The message alone: the line that it was imported from names entries of its own file."""
    body = pb.EntryBody.FromString(stored)
    body.ClearField("source")
    return NewEntry(
        kind=EntryKind.MESSAGE,
        body=serialize(body),
        token_count=turn.token_count,
        role=turn.role,
        calls=turn.calls,
        answers=turn.answers,
        is_synthetic=turn.is_synthetic,
    )
