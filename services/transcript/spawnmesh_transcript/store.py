"""The service's statements as functions: rows in, domain values out. Each runs in the caller's transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from psycopg.rows import DictRow, args_row
from psycopg.types.json import Jsonb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.bodies import is_canonical
from spawnmesh_transcript.domain.entries import EntryKind, Head, Label, NewEntry, StoredEntry
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.turns import Role, Turn
from spawnmesh_transcript.domain.window import WindowEntry
from spawnmesh_transcript.domain.writers import Writer

_SQL = load_statements("spawnmesh_transcript")

# For thousands of rows: comparing with an enum's member, or making one, costs more than all else that is done with a row.
_MESSAGE, _NOTE = EntryKind.MESSAGE.value, EntryKind.NOTE.value
_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class Key:
    """Names a transcript."""

    tenant_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """Where a transcript stands, where it came from, and how much it holds. Turns are messages and system notes."""

    head: Head
    forked_from_session_id: str
    turn_count: int
    superseded_turn_count: int
    token_count: int


@dataclass(frozen=True, slots=True)
class Append:
    """Entries for one transcript, made ready under the settings of that version."""

    key: Key
    entries: Sequence[NewEntry]
    idempotency_key: str
    content_hash: bytes
    writer: Writer
    settings_version: int


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """What the database made of an append; `outcome` and which fields come with it are said at the function `append_together`."""

    outcome: str
    head: Head | None
    first_seq: int
    entry_ids: tuple[str, ...]
    missing_entry_id: str
    policy: TenantPolicy | None
    """The one that holds, where the entries were made ready under another."""

    @property
    def is_busy(self) -> bool:
        """Whether nothing was done and nothing is known: the transcript would have had to be waited for, or it takes a closer look."""
        return self.outcome == "BUSY"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page begins, and which way it goes; the entry at `seq` is not in it."""

    seq: int
    is_downwards: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries are asked for; empty means all. Roles are those of messages."""

    kinds: frozenset[EntryKind] = frozenset()
    roles: frozenset[Role] = frozenset()


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on an earlier entry."""

    label: Label
    target_seq: int


class ScannedEntry(NamedTuple):
    """An entry as selection sees it: a turn, a mark on one, or neither."""

    seq: int
    turn: Turn | None
    mark: Mark | None


async def begin_transcript(
    database: Database, key: Key, *, incarnation: str, parent_session_id: str, service: str, entries: Sequence[NewEntry]
) -> Head | None:
    """Inserts a transcript that is forked from none, with its first entries, in one round trip, a transaction of its own.

    None, and nothing done, where there is one, or was one, or the tenant is being purged.
    """
    parameters = _parameters(key, incarnation=incarnation, parent_session_id=parent_session_id, service=service)
    rows = await database.call(key.tenant_id, _SQL["begin_transcript"], {**parameters, **entry_parameters(entries)})
    return head_of(rows[0]) if rows else None


async def insert_transcript(
    connection: Connection, key: Key, *, incarnation: str, forked_from_session_id: str, parent_session_id: str
) -> bool:
    """Inserts an empty transcript; False where there is one, or was one."""
    row = await _one(
        connection,
        "insert_transcript",
        key,
        incarnation=incarnation,
        forked_from_session_id=forked_from_session_id,
        parent_session_id=parent_session_id,
    )
    return row is not None


async def has_begun(connection: Connection, key: Key) -> bool:
    """Whether there is a transcript, or there was one, or one is being imported."""
    return await _one(connection, "has_begun", key) is not None


async def is_deleted(connection: Connection, key: Key) -> bool:
    """Whether there was a transcript, or one was deleted before it was created."""
    return await _one(connection, "is_deleted", key) is not None


async def write_entries(connection: Connection, key: Key, entries: Sequence[NewEntry], *, service: str) -> Head:
    """Puts entries into the transcript that this transaction has just inserted; a service writes them, no run."""
    row = await _one(connection, "write_entries", key, service=service, **entry_parameters(entries))
    if row is None:
        raise LookupError("a function call answers one row")
    return head_of(row)


async def append_entries(
    database: Database, tenant_id: str, appends: Sequence[Append], *, waits: bool
) -> list[AppendOutcome]:
    """Makes the appends under their fences, in one transaction of its own and one round trip; each has its own outcome.

    Without `waits`, one whose transcript another transaction holds is BUSY.
    """
    calls: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    first_byte = 1
    for append in appends:
        calls.append(call_parameters(append, first_byte))
        for entry in append.entries:
            bodies.append(entry.body)
            first_byte += len(entry.body)
    parameters = {"calls": Jsonb(calls, orjson.dumps), "bodies": b"".join(bodies), "waits": waits}
    rows = await database.call(tenant_id, _SQL["append_entries"], parameters)
    return [append_outcome(row, call["entries"]) for row, call in zip(rows, calls, strict=True)]


async def read_transcript(connection: Connection, key: Key) -> Transcript | None:
    """The transcript without its entries; None where there is none."""
    row = await _one(connection, "read_transcript", key)
    if row is None:
        return None
    return Transcript(
        head_of(row), row["forked_from_session_id"], row["turn_count"], row["superseded_turn_count"], row["token_count"]
    )


async def scan_window(
    database: Database, key: Key, *, from_seq: int, row_count: int, max_bytes: int
) -> tuple[Head, list[WindowEntry]] | None:
    """The head and entries behind a seq at one moment, in one round trip; None where there is no transcript."""
    parameters = _parameters(key, from_seq=from_seq, row_count=row_count, max_bytes=max_bytes)
    rows = await database.call(key.tenant_id, _SQL["scan_window"], parameters)
    if not rows:
        return None
    first = rows[0]
    head = Head(
        first["incarnation"], first["head_seq"], first["head_chain_hash"], first["head_run_id"], first["head_epoch"]
    )
    return head, sorted(_window_entry(row) for row in rows if row["seq"] is not None)


async def begin_snapshot(connection: Connection) -> None:
    """Lets all that follows in the transaction see one moment, and `keep_index_order`. The first statement in it."""
    await connection.execute(_SQL["begin_snapshot"])


async def keep_index_order(connection: Connection) -> None:
    """Lets what follows in the transaction read entries at the cost of what it reads, never of the whole transcript."""
    await connection.execute(_SQL["keep_index_order"])


async def list_entries(
    connection: Connection, key: Key, position: Position, choice: Filter, *, page_size: int, max_bytes: int
) -> tuple[list[StoredEntry], bool]:
    """A page of entries by seq, and whether there are more beyond it. Needs `keep_index_order`."""
    parameters = _parameters(
        key,
        seq=position.seq,
        kinds=[*choice.kinds] or None,
        roles=[*choice.roles] or None,
        page_size=page_size,
        max_bytes=max_bytes,
    )
    statement = "list_entries_before" if position.is_downwards else "list_entries_after"
    async with connection.cursor(binary=True, row_factory=args_row(counted_entry)) as cursor:
        await cursor.execute(_SQL[statement], parameters)
        found = await cursor.fetchall()
    entries = [entry for entry, _ in found]
    if position.is_downwards:
        entries.reverse()
    return entries, bool(found) and found[0][1] > len(found)


async def newest_user_turn(connection: Connection, key: Key) -> Turn | None:
    """The newest message of a user that is not superseded. Needs `keep_index_order`."""
    row = await _one(connection, "newest_user_turn", key)
    if row is None:
        return None
    counted_by, size_bytes = row["token_vocabulary"], row["size_bytes"]
    return Turn(row["seq"], Role.USER, row["token_count"], counted_by=counted_by, size_bytes=size_bytes)


async def token_vocabularies_of(connection: Connection, key: Key, seqs: Collection[int]) -> dict[int, Vocabulary]:
    """By which vocabularies entries were counted. Needs `keep_index_order`."""
    parameters = _parameters(key, seqs=list(seqs))
    rows = await (await connection.execute(_SQL["token_vocabularies_of"], parameters)).fetchall()
    return {row["seq"]: Vocabulary(row["token_vocabulary"]) for row in rows}


async def scan_entries(
    connection: Connection, key: Key, *, after_seq: int, before_seq: int, row_count: int
) -> list[ScannedEntry]:
    """Entries between two seqs, newest first, without their bodies. Needs `keep_index_order`."""
    parameters = _parameters(key, after_seq=after_seq, before_seq=before_seq, row_count=row_count)
    async with connection.cursor(binary=True, row_factory=args_row(_scanned_entry)) as cursor:
        await cursor.execute(_SQL["scan_entries"], parameters)
        return await cursor.fetchall()


async def read_entries(connection: Connection, key: Key, seqs: Collection[int]) -> list[StoredEntry]:
    """The entries of these seqs with their bodies, in no particular order. Needs `keep_index_order`."""
    runs = _runs(seqs)
    return await _stored_entries(
        connection, "read_entries", key, first_seqs=[first for first, _ in runs], last_seqs=[last for _, last in runs]
    )


def _runs(seqs: Collection[int]) -> list[tuple[int, int]]:
    """The first and the last of each unbroken run."""
    runs: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs


def _parameters(key: Key, **more: Any) -> dict[str, Any]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id, **more}


async def _one(connection: Connection, statement: str, key: Key, **more: Any) -> DictRow | None:
    cursor = await connection.execute(_SQL[statement], _parameters(key, **more), binary=True)
    return await cursor.fetchone()


async def _stored_entries(connection: Connection, statement: str, key: Key, **more: Any) -> list[StoredEntry]:
    """For statements that select the columns of StoredEntry in its order."""
    async with connection.cursor(binary=True, row_factory=args_row(StoredEntry)) as cursor:
        await cursor.execute(_SQL[statement], _parameters(key, **more))
        return await cursor.fetchall()


def entry_parameters(entries: Sequence[NewEntry]) -> dict[str, Any]:
    """`entries` and `bodies` of a statement that writes them."""
    return {
        "entries": Jsonb([described(entry) for entry in entries], orjson.dumps),
        "bodies": b"".join(entry.body for entry in entries),
    }


def described(entry: NewEntry) -> dict[str, Any]:
    """An entry as the functions that write entries read it, beside its body. What is empty is left out: the server reads every word of this."""
    described: dict[str, Any] = {
        "entry_id": entry.entry_id or new_id(IdKind.ENTRY),
        "kind": entry.kind,
        "token_count": entry.token_count,
        "token_vocabulary": entry.token_vocabulary,
        "body_size": len(entry.body),
    }
    if entry.role:
        described["role"] = entry.role
    if entry.parent_entry_id:
        described["parent_entry_id"] = entry.parent_entry_id
    if entry.calls:
        described["calls"] = entry.calls
    if entry.answers:
        described["answers"] = entry.answers
    if entry.is_synthetic:
        described["is_synthetic"] = True
    if entry.label:
        described["label"] = entry.label
    if entry.target_entry_id:
        described["target_entry_id"] = entry.target_entry_id
    return described


def call_parameters(append: Append, first_byte: int) -> dict[str, Any]:
    """One of the `calls` of a statement that appends, whose bodies begin at that byte of them all, counted from 1."""
    target_ids = [entry.target_entry_id for entry in append.entries if entry.target_entry_id]
    return {
        **fence_parameters(append, first_byte),
        "entries": [described(entry) for entry in append.entries],
        "entry_count": len(append.entries),
        "target_ids": target_ids or None,
    }


def fence_parameters(append: Append, first_byte: int) -> dict[str, Any]:
    """What any call that appends has beside its entries: for which transcript, by whom, and under what."""
    claim = append.writer.claim
    return {
        "session_id": append.key.session_id,
        "idempotency_key": append.idempotency_key,
        "content_hash": append.content_hash.hex(),
        "run_id": claim.run_id if claim else "",
        "epoch": claim.epoch if claim else 0,
        "service": append.writer.service,
        "client": append.writer.client,
        "first_byte": first_byte,
        "settings_version": append.settings_version,
    }


def append_outcome(row: DictRow, described: Sequence[dict[str, Any]]) -> AppendOutcome:
    """What came of a call, with the `entries` that it was made with."""
    return AppendOutcome(
        outcome=row["outcome"],
        head=head_of(row) if row["seq"] is not None else None,
        first_seq=row["first_seq"] or 0,
        entry_ids=tuple(row["entry_ids"] or (one["entry_id"] for one in described)),
        missing_entry_id=row["missing_entry_id"] or "",
        policy=None if row["settings_version"] is None else TenantPolicy(row["settings_version"], row["mask_secrets"]),
    )


def head_of(row: DictRow) -> Head:
    """For a row with the columns of a head."""
    return Head(row["incarnation"], row["seq"], row["chain_hash"], row["writer_run_id"], row["writer_epoch"])


def _window_entry(row: DictRow) -> WindowEntry:
    kind, role = EntryKind(row["kind"]), Role(row["role"]) if row["role"] else None
    return WindowEntry(
        row["seq"],
        kind,
        role,
        row["writer_run_id"],
        row["writer_epoch"],
        row["writer_client"],
        row["chain_hash"],
        row["body"],
        row["dropped_bytes"],
        is_canonical(kind, role, row["body"]),
    )


def counted_entry(*columns: Any) -> tuple[StoredEntry, int]:
    """For the columns of `StoredEntry` in their order, and the number of entries found."""
    return StoredEntry(*columns[:-1]), columns[-1]


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
    """For the columns of `scan_entries` in their order."""
    if kind == _MESSAGE:
        turn = Turn(seq, _ROLES[role], token_count, tuple(calls), answers, is_synthetic, token_vocabulary, size_bytes)
        return ScannedEntry(seq, turn, None)
    if kind == _NOTE:
        note = Turn(seq, Role.NOTE, token_count, counted_by=token_vocabulary, size_bytes=size_bytes)
        return ScannedEntry(seq, note, None)
    mark = Mark(Label(label), target_seq) if target_seq is not None else None
    return ScannedEntry(seq, None, mark)
