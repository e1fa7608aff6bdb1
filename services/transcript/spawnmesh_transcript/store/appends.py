"""Appends. One statement makes them, with the fragments that they need."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Flag, auto
from functools import cache

from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement
from spawnmesh_postgres.rows import Row
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.appends import (
    Append,
    AppendOutcome,
    AppendResult,
    AppendState,
    EarlierAppend,
    refuse_append,
    repeat_append,
)
from spawnmesh_transcript.domain.entries import Head, NewEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store.append_calls import Calls, chained_results, result_of
from spawnmesh_transcript.store.payloads import stub_rows
from spawnmesh_transcript.store.rows import head_of, key_parameters

ENTRY_ID_KEY = "entries_id_key"
"""The constraint that the ids of entries are unique."""

_SQL = load_statements(__name__)
_AROUND_SIGNS = re.compile(r" ?(\|\||[(),=+<>]) ?")
_BUSY = AppendResult(AppendOutcome.BUSY)
_SETTINGS_CHANGED = AppendResult(AppendOutcome.SETTINGS_CHANGED)  # Or what refused it did: repeat it.


class _Need(Flag):
    """A fragment that calls need, unless they are one entry each that refers to no other."""

    NOTHING = 0
    SEVERAL_ENTRIES = auto()
    REFERENCES = auto()
    """Entries refer to others."""
    SEVERAL_APPENDS = auto()
    """A call has the entries of several appends."""
    FENCE = auto()
    """Calls close prompt windows."""
    RELEASE = auto()
    """Calls end their claims."""
    STUBS = auto()
    LOCK_WAIT = auto()
    """The statement waits for the transcript's lock."""
    IMPORT = auto()
    """The transcript is being imported."""
    CREATION = auto()
    """The transaction creates the transcript."""


_PLAIN = {
    "stubs": "",
    "targets": "",
    "call_columns": "",
    "entry_columns": "",
    "key_columns": _SQL["key_columns"],
    "keys": _SQL["keys"],
    "is_kept": _SQL["is_kept"],
    "keys_are_new": "",
    "used_key": _SQL["used_key"],
    "targets_exist": "",
    "fence_columns": "",
    "is_at_fence": "",
    "release_column": "",
    "writer_column": "",
    "writer_after": "",
    "writer_update": "",
    "retracted": "",
    "writer_of_head": "c.writer_run_id",
    "chain_hash": "sha256(l.link)",
    "chain_hashes": "",
    "target_seq": "null",
    "superseded_turn_count": "0",
    "skip_locked": "skip locked",
    "state": "'LIVE'",
}
"""The replacements of the fragments that an append without needs has. A fragment may name later
ones.
"""

_FRAGMENTS = {
    _Need.SEVERAL_ENTRIES: {"chain_hash": _SQL["chain_hash"]},
    _Need.REFERENCES: {
        name: _SQL[name]
        for name in (
            "call_columns",
            "entry_columns",
            "targets",
            "targets_exist",
            "target_seq",
            "superseded_turn_count",
        )
    },
    _Need.SEVERAL_APPENDS: {
        "key_columns": _SQL["key_columns_of_several"],
        "keys": _SQL["keys_of_several"],
        "is_kept": "c.session_id in (select session_id from kept)",
        "used_key": _SQL["used_key_of_several"],
        "keys_are_new": "and {used_key} is null",
        "chain_hashes": _SQL["chain_hashes"],
    },
    _Need.FENCE: {name: _SQL[name] for name in ("fence_columns", "is_at_fence")},
    _Need.RELEASE: {
        **{name: _SQL[name] for name in ("release_column", "writer_after", "retracted", "writer_of_head")},
        "writer_column": ", writer_run_id",
        "writer_update": ", writer_run_id = excluded.writer_run_id",
    },
    _Need.STUBS: {"stubs": _SQL["stubs"]},
    _Need.LOCK_WAIT: {"skip_locked": ""},
    _Need.IMPORT: {"state": "'IMPORTING'"},
    _Need.CREATION: {"state": "'LIVE' and incarnation = %(incarnation)s"},
}


@cache
def _statement(needs: _Need) -> str:
    fragments = dict(_PLAIN)
    for need in needs:
        fragments |= _FRAGMENTS[need]
    statement = _compact(_SQL["append"])
    for name, text in fragments.items():
        statement = statement.replace(f"{{{name}}}", _compact(text))
    return statement


def _compact(text: str) -> str:
    """Return the text without comments and superfluous spaces. The driver parses one of more than
    4,096 bytes in every run.
    """
    lines = (line.strip() for line in text.splitlines())
    return _AROUND_SIGNS.sub(r"\1", " ".join(line for line in lines if not line.startswith("--")))


def _needs_of(entries: Sequence[NewEntry]) -> _Need:
    needs = _Need.SEVERAL_ENTRIES if len(entries) > 1 else _Need.NOTHING
    if any(entry.label or entry.target_entry_id for entry in entries):
        needs |= _Need.REFERENCES
    return needs


def _needs_of_append(append: Append) -> _Need:
    needs = _needs_of(append.entries)
    if append.fence:
        needs |= _Need.FENCE
    if append.releases_writer:
        needs |= _Need.RELEASE
    return needs


async def append_batch(database: Database, tenant_id: str, appends: Sequence[Append]) -> list[AppendResult]:
    """Make appends that can share a transaction, in one round trip; each has its own result.

    An append is BUSY if it, or one of those that share its transcript, would wait for a lock, has a
    used key or refers to a missing entry; `append_alone` then gives the result.
    """
    by_key: dict[Key, list[Append]] = {}
    for append in appends:
        by_key.setdefault(append.key, []).append(append)
    (statement, parameters), ids = batch_statement(tenant_id, by_key)
    rows = {row["session_id"]: row for row in await database.call(tenant_id, statement, parameters)}
    results: dict[Key, Iterator[AppendResult]] = {
        key: iter(_results(sharing, rows.get(key.session_id), ids[key])) for key, sharing in by_key.items()
    }
    return [next(results[append.key]) for append in appends]


def batch_statement(
    tenant_id: str, by_key: Mapping[Key, Sequence[Append]]
) -> tuple[Statement, dict[Key, tuple[str, ...]]]:
    """Return the statement that makes the appends, and the ids of each transcript's new entries."""
    calls, needs = Calls(), _Need.NOTHING
    is_chained = any(len(sharing) > 1 for sharing in by_key.values())
    if is_chained:
        needs = _Need.SEVERAL_APPENDS | _Need.SEVERAL_ENTRIES
    ids = {}
    for key, sharing in by_key.items():
        ids[key] = calls.add_chained(sharing) if is_chained else calls.add_append(sharing[0])
        for append in sharing:
            needs |= _needs_of_append(append)
    return (_statement(needs), calls.parameters(tenant_id)), ids


def _results(
    sharing: Sequence[Append], row: Row | None, entry_ids: tuple[str, ...]
) -> Iterable[AppendResult]:
    if row is None or not row["is_made"]:
        return [_refusal(append, row) or _BUSY for append in sharing]
    if len(sharing) > 1:
        return chained_results(sharing, row, entry_ids)
    return [result_of(sharing[0], row, entry_ids)]


def _refusal(append: Append, row: Row | None) -> AppendResult | None:
    """Return why a rule refuses the append, if the row of `append` says enough to decide."""
    if row is None or not row["is_new"]:
        return None
    head = None if row["is_purging"] else head_of(row)
    return refuse_append(append, AppendState(row["settings"], head, None, ""))


async def append_waiting(database: Database, append: Append, stubs: Sequence[Stub] = ()) -> AppendResult:
    """Make one append, with the stubs of its entries, in one transaction.

    It waits for the transcript's lock. It takes one round trip, or two if a rule refuses it.
    """
    statements, ids = waiting_statements(append, stubs)
    row = _only((await database.transact(append.key.tenant_id, *statements))[-1])
    if row and row["is_made"]:
        return result_of(append, row, ids)
    [(state,)] = await database.transact(append.key.tenant_id, state_statement(append))
    return refuse_append(append, state_of(state)) or _SETTINGS_CHANGED


async def append_alone(database: Database, append: Append) -> AppendResult:
    """Make one append that a batch did not make, in one round trip. It waits for the transcript's
    lock.
    """
    statements, ids = waiting_statements(append)
    *_, rows, (state,) = await database.transact(append.key.tenant_id, *statements, state_statement(append))
    row = _only(rows)
    if row and row["is_made"]:
        return result_of(append, row, ids)
    return refuse_append(append, state_of(state)) or _SETTINGS_CHANGED


async def find_repeated(database: Database, append: Append) -> AppendResult | None:
    """Return the outcome of an append whose key was used, and None if it was not, or if there is no
    transcript. One round trip.
    """
    [(state,)] = await database.transact(append.key.tenant_id, state_statement(append))
    return repeat_append(append, state_of(state))


def _only(rows: Sequence[Row]) -> Row | None:
    return rows[0] if rows else None


def waiting_statements(append: Append, stubs: Sequence[Stub] = ()) -> tuple[list[Statement], tuple[str, ...]]:
    """Return the statements that make the append, of which the last one returns the head, and the
    ids of the entries.

    An append that refers to other entries has to see those that it waited for, so a statement
    before it takes the lock.
    """
    calls = Calls()
    ids = calls.add_append(append)
    parameters = calls.parameters(append.key.tenant_id)
    needs = _needs_of_append(append)
    if stubs:
        needs |= _Need.STUBS
        parameters |= stub_rows(stubs)
    if _Need.REFERENCES in needs:
        locking = (_SQL["lock_for_append"], key_parameters(append.key))
        return [locking, (_statement(needs), parameters)], ids
    return [(_statement(needs | _Need.LOCK_WAIT), parameters)], ids


async def append_with_creation(
    database: Database, append: Append, incarnation: str, create: Sequence[Statement]
) -> Head | None:
    """Create the transcript by these statements and make its first append, in one transaction and
    one round trip.

    Returns None if the append was not made. Then the transcript may exist, by this call or another.
    """
    calls = Calls()
    calls.add_append(append)
    parameters = {**calls.parameters(append.key.tenant_id), "incarnation": incarnation}
    statement = _statement(_needs_of(append.entries) | _Need.LOCK_WAIT | _Need.CREATION)
    *_, rows = await database.transact(append.key.tenant_id, *create, (statement, parameters))
    row = _only(rows)
    return head_of(row) if row and row["is_made"] else None


def state_statement(append: Append) -> Statement:
    """Return the statement that reads what decides about the append."""
    return _SQL["read_append_state"], key_parameters(
        append.key, request_id=append.request_id, target_ids=append.target_ids
    )


def state_of(row: Row) -> AppendState:
    """Return what the row of `state_statement` says."""
    head = None if row["seq"] is None else head_of(row)
    earlier = None
    if head is not None and row["content_hash"] is not None:
        then = Head(
            head.incarnation,
            row["last_seq"],
            row["last_chain_hash"] or b"",
            row["append_run_id"],
            row["append_epoch"],
        )
        ids = tuple(row["entry_ids"] or ())
        earlier = EarlierAppend(row["content_hash"], row["first_seq"], ids, then)
    return AppendState(row["settings_version"], head, earlier, row["missing_entry_id"] or "")


async def write_entries(
    connection: Connection,
    key: Key,
    entries: Sequence[NewEntry],
    writer: Writer,
    stubs: Sequence[Stub] = (),
    *,
    is_import: bool = False,
) -> Head:
    """Write entries, with their stubs, into a transcript whose row the transaction holds, and which
    is LIVE, or IMPORTING for an import.
    """
    calls, needs = Calls(), _needs_of(entries)
    calls.add(key, entries, writer)
    parameters = calls.parameters(key.tenant_id)
    if stubs:
        needs |= _Need.STUBS
        parameters |= stub_rows(stubs)
    if is_import:
        needs |= _Need.IMPORT
    cursor = await connection.execute(_statement(needs), parameters, binary=True)
    row = await cursor.fetchone()
    if row is None:
        raise LookupError("the transaction holds the transcript's row")
    return head_of(row)
