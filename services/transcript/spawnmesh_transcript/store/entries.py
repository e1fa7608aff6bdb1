"""Entries of a transcript. Each function runs in the caller's transaction, except `scan_window`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from psycopg.rows import args_row
from spawnmesh_core.errors import not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import (
    EntryFilter,
    EntryKind,
    Head,
    Label,
    PagePosition,
    StoredEntry,
)
from spawnmesh_transcript.domain.prompt_window import WindowEntry
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role, Turn
from spawnmesh_transcript.store.rows import counted_entry, key_parameters, runs_of

_SQL = load_statements(__name__)
READ_NEWEST_USER_TURN = _SQL["read_newest_user_turn"]

# Creating or comparing an enum member costs more than all other work on a row, of thousands.
_MESSAGE, _NOTE = EntryKind.MESSAGE.value, EntryKind.NOTE.value
_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on an earlier entry."""

    label: Label
    target_seq: int


class ScannedEntry(NamedTuple):
    """An entry as selection sees it: a turn, a mark on a turn, or neither.

    A tuple, because a scan has thousands and a dataclass takes five times as long to create.
    """

    seq: int
    turn: Turn | None
    mark: Mark | None


async def scan_window(
    database: Database, key: Key, *, from_seq: int, row_count: int, max_bytes: int
) -> tuple[Head, bytes, list[WindowEntry]] | None:
    """Return the head, the chain hash before a seq, and the entries from the seq on, in one
    snapshot and one round trip.

    Returns None if there is no transcript.
    """
    parameters = key_parameters(key, from_seq=from_seq, row_count=row_count, max_bytes=max_bytes)
    rows = await database.call(key.tenant_id, _SQL["scan_window"], parameters)
    if not rows:
        return None
    first = rows[0]
    head = Head(
        first["incarnation"],
        first["head_seq"],
        first["head_chain_hash"],
        first["head_run_id"],
        first["head_epoch"],
    )
    entries = sorted(_window_entry(row) for row in rows if row["seq"] is not None)
    return head, first["before_chain_hash"] or b"", entries


async def list_entries(
    connection: Connection,
    key: Key,
    position: PagePosition,
    wanted: EntryFilter,
    *,
    end_seq: int,
    page_size: int,
    max_bytes: int,
) -> tuple[list[StoredEntry], bool]:
    """Return a page of entries by seq, and whether there are more of them up to `end_seq`."""
    parameters = key_parameters(
        key,
        seq=position.seq,
        end_seq=end_seq,
        kinds=[*wanted.kinds] or None,
        roles=[*wanted.roles] or None,
        page_size=page_size,
        max_bytes=max_bytes,
    )
    statement = "list_entries_before" if position.is_backwards else "list_entries_after"
    async with connection.cursor(binary=True, row_factory=args_row(counted_entry)) as cursor:
        await cursor.execute(_SQL[statement], parameters)
        found = await cursor.fetchall()
    entries = [entry for entry, _ in found]
    if position.is_backwards:
        entries.reverse()
    return entries, bool(found) and found[0][1] > len(found)


def user_turn_of(row: Row) -> Turn:
    """Return the message from a row of READ_NEWEST_USER_TURN."""
    counted_by, size_bytes = row["token_vocabulary"], row["size_bytes"]
    return Turn(row["seq"], Role.USER, row["token_count"], counted_by=counted_by, size_bytes=size_bytes)


async def read_user_turn_at(connection: Connection, key: Key, *, up_to_seq: int) -> Turn | None:
    """Return the message of a user that was the newest one when the transcript ended at this seq.

    None if there was none that was not superseded.
    """
    parameters = key_parameters(key, up_to_seq=up_to_seq)
    row = await (await connection.execute(_SQL["read_user_turn_at"], parameters)).fetchone()
    return user_turn_of(row) if row else None


async def read_totals_at(
    connection: Connection, key: Key, *, after_seq: int, up_to_seq: int
) -> tuple[int, int]:
    """Return the number of messages and notes behind a seq and up to the other one, and their
    tokens.
    """
    parameters = key_parameters(key, after_seq=after_seq, up_to_seq=up_to_seq)
    row = await (await connection.execute(_SQL["read_totals_at"], parameters)).fetchone()
    return (row["turn_count"], row["token_count"]) if row else (0, 0)


async def read_token_vocabularies(
    connection: Connection, key: Key, seqs: Collection[int]
) -> dict[int, Vocabulary]:
    """Return the vocabularies that counted the entries, by seq."""
    parameters = key_parameters(key, seqs=list(seqs))
    rows = await (await connection.execute(_SQL["read_token_vocabularies"], parameters)).fetchall()
    return {row["seq"]: Vocabulary(row["token_vocabulary"]) for row in rows}


async def scan_entries(
    connection: Connection, key: Key, *, after_seq: int, before_seq: int, row_count: int
) -> list[ScannedEntry]:
    """Return the entries between two seqs, newest first, without bodies."""
    parameters = key_parameters(key, after_seq=after_seq, before_seq=before_seq, row_count=row_count)
    async with connection.cursor(binary=True, row_factory=args_row(_scanned_entry)) as cursor:
        await cursor.execute(_SQL["scan_entries"], parameters)
        return await cursor.fetchall()


async def read_entries(connection: Connection, key: Key, seqs: Collection[int]) -> list[StoredEntry]:
    """Return the entries of these seqs with bodies, in no particular order."""
    runs = runs_of(seqs)
    return await _stored_entries(
        connection,
        "read_entries",
        key,
        first_seqs=[first for first, _ in runs],
        last_seqs=[last for _, last in runs],
    )


async def get_entries(
    connection: Connection, key: Key, seqs: Collection[int], *, bodiless: Collection[int] = ()
) -> dict[int, StoredEntry]:
    """Return the entries of these seqs with their bodies, by seq.

    The bodies of `bodiless` are empty. Raises NOT_FOUND if an entry is missing: the transcript was
    deleted.
    """
    if bodiless:
        runs, without = runs_of(seqs), set(bodiless)
        lengths = [last - first + 1 for first, last in runs]
        found = await _stored_entries(
            connection,
            "read_entries_in_part",
            key,
            first_seqs=[first for first, _ in runs],
            last_seqs=[last for _, last in runs],
            first_places=list(accumulate(lengths[:-1], initial=0)),
            is_bodiless=[seq in without for seq in sorted(seqs)],
        )
    else:
        found = await read_entries(connection, key, seqs)
    entries = {entry.seq: entry for entry in found}
    if len(entries) != len(seqs):
        raise not_found("transcript", key.session_id)
    return entries


async def _stored_entries(connection: Connection, statement: str, key: Key, **more: Any) -> list[StoredEntry]:
    """Run a statement that selects the columns of StoredEntry in its order."""
    async with connection.cursor(binary=True, row_factory=args_row(StoredEntry)) as cursor:
        await cursor.execute(_SQL[statement], key_parameters(key, **more))
        return await cursor.fetchall()


def _window_entry(row: Row) -> WindowEntry:
    kind, role = EntryKind(row["kind"]), Role(row["role"]) if row["role"] else None
    return WindowEntry(
        row["seq"],
        row["entry_id"],
        row["parent_entry_id"],
        kind,
        role,
        row["writer_run_id"],
        row["writer_epoch"],
        row["writer_service"],
        row["writer_client"],
        row["create_time"],
        row["chain_hash"],
        row["body"],
        row["dropped_bytes"],
    )


def _scanned_entry(
    seq: int,
    kind: str,
    role: str,
    token_count: int,
    calls: list[str],
    answers: str,
    is_synthetic: bool,
    label: str,
    target_seq: int | None,
    token_vocabulary: str,
    size_bytes: int,
) -> ScannedEntry:
    """Take the columns of `scan_entries` in their order."""
    if kind == _MESSAGE:
        turn = Turn(
            seq, _ROLES[role], token_count, tuple(calls), answers, is_synthetic, token_vocabulary, size_bytes
        )
        return ScannedEntry(seq, turn, None)
    if kind == _NOTE:
        note = Turn(seq, Role.NOTE, token_count, counted_by=token_vocabulary, size_bytes=size_bytes)
        return ScannedEntry(seq, note, None)
    mark = Mark(Label(label), target_seq) if target_seq is not None else None
    return ScannedEntry(seq, None, mark)


@dataclass(frozen=True, slots=True)
class BehindFork:
    """Facts about the entries before a fork that the entries behind it hold.

    `answered_calls` are calls before the fork whose result is behind it.
    """

    answered_calls: frozenset[str]
    superseded_seqs: frozenset[int]


async def read_behind_fork(connection: Connection, key: Key, *, seq: int, calls: Sequence[str]) -> BehindFork:
    """Read all entries behind the seq, without their bodies. `calls` are those without a result."""
    values = key_parameters(key, seq=seq, calls=list(calls))
    row = await (await connection.execute(_SQL["read_behind_fork"], values)).fetchone()
    if row is None:
        raise RuntimeError("an aggregate returned no row")
    return BehindFork(frozenset(row["answered_calls"]), frozenset(row["superseded_seqs"]))


@dataclass(frozen=True, slots=True)
class EntrySize:
    """The size of an entry. `role` is empty if it is not a message."""

    seq: int
    role: str
    stored_bytes: int
    dropped_bytes: int


async def scan_sizes(connection: Connection, key: Key, *, after_seq: int, row_count: int) -> list[EntrySize]:
    """Return the sizes of entries behind a seq, oldest first."""
    async with connection.cursor(binary=True, row_factory=args_row(EntrySize)) as cursor:
        await cursor.execute(
            _SQL["scan_sizes"], key_parameters(key, after_seq=after_seq, row_count=row_count)
        )
        return await cursor.fetchall()
