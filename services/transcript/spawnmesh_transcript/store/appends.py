"""Appends. One statement makes them all, in batches; one without lookups of other entries makes
plain appends, which nearly all are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from psycopg.types.json import Jsonb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.pipelines import Statement, transact
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.appends import (
    Append,
    AppendOutcome,
    AppendResult,
    AppendState,
    EarlierAppend,
    refuse_append,
)
from spawnmesh_transcript.domain.entries import EntryKind, Head, Label, NewEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store.payloads import insert_stubs_statement
from spawnmesh_transcript.store.rows import Row, head_of, key_parameters

_SQL = load_statements(__name__)
_PLAIN = {
    "call_columns": "",
    "transcript_is_meant": "state = 'LIVE'",
    "targets_exist": "true",
    "chain_hash": "sha256(l.link)",
    "target_seq": "null",
    "superseded_turn_count": "0",
}
"""The replacements of the fragments in the statement of plain appends."""


def _with_fragments(fragments: Mapping[str, str]) -> str:
    statement = _compact(_SQL["append"])
    for name, text in fragments.items():
        statement = statement.replace(f"{{{name}}}", _compact(text))
    return statement


def _compact(text: str) -> str:
    """Return the text on one line. The driver parses one of more than 4,096 bytes in every run."""
    lines = (line.strip() for line in text.splitlines())
    return " ".join(line for line in lines if not line.startswith("--"))


_APPEND = _with_fragments({name: _SQL[name] for name in _PLAIN})
_APPEND_PLAIN = _with_fragments(_PLAIN)
_APPEND_FIRST = _with_fragments(
    {
        **_PLAIN,
        "call_columns": ", incarnation text",
        "transcript_is_meant": "state = 'LIVE' and incarnation = c.incarnation",
    }
)

_TURNS = (EntryKind.MESSAGE, EntryKind.NOTE)
_BUSY = AppendResult(AppendOutcome.BUSY)


def are_plain(appends: Sequence[Append]) -> bool:
    """Return whether each append is one entry that refers to no other, and each has its own
    transcript.
    """
    return len({append.key for append in appends}) == len(appends) and all(map(_is_plain, appends))


def _is_plain(append: Append) -> bool:
    return len(append.entries) == 1 and not (append.entries[0].label or append.entries[0].target_entry_id)


class Calls:
    """The parameters of `append`: calls, and their bodies one behind the other."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._bodies: list[bytes] = []
        self._first_byte = 1

    def add(self, key: Key, entries: Sequence[NewEntry], writer: Writer, **more: Any) -> list[str]:
        """Add a call and return the ids of its entries.

        It omits empty values, because the server parses every word.
        """
        described = self._describe(entries)
        call: dict[str, Any] = {
            "session_id": key.session_id,
            "service": writer.service,
            "client": writer.client,
            "entries": described,
            "entry_count": len(entries),
            "token_count": sum(entry.token_count for entry in entries),
            "byte_count": sum(len(entry.body) for entry in entries),
            "turn_count": sum(entry.kind in _TURNS for entry in entries),
            **more,
        }
        if writer.claim:
            call["run_id"], call["epoch"] = writer.claim.run_id, writer.claim.epoch
        if any(entry.label for entry in entries):
            call |= _superseded(entries, described)
        self._calls.append(call)
        return [one["entry_id"] for one in described]

    def add_append(self, append: Append) -> list[str]:
        """Add an append as `add` does."""
        more: dict[str, Any] = {
            "settings_version": append.settings_version,
            "idempotency_key": append.idempotency_key,
            "content_hash": append.content_hash.hex(),
        }
        if target_ids := _target_ids(append):
            more["target_ids"] = target_ids
        return self.add(append.key, append.entries, append.writer, **more)

    def parameters(self, tenant_id: str) -> dict[str, Any]:
        """Return the parameters of the statement. Raises ValueError for a body of another size."""
        bodies = b"".join(self._bodies)
        if len(bodies) != self._first_byte - 1:
            raise ValueError("the bodies have other sizes than they say")
        return {"tenant_id": tenant_id, "calls": Jsonb(self._calls, orjson.dumps), "bodies": bodies}

    def _describe(self, entries: Sequence[NewEntry]) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        previous_id = ""
        for place, entry in enumerate(entries):
            one: dict[str, Any] = {
                "place": place,
                "entry_id": entry.entry_id or new_id(IdKind.ENTRY),
                "kind": entry.kind,
                "token_count": entry.token_count,
                "token_vocabulary": entry.token_vocabulary,
                "first_byte": self._first_byte,
                "body_size": len(entry.body),
            }
            if entry.role:
                one["role"] = entry.role
            if parent_id := entry.parent_entry_id or previous_id:
                one["parent_entry_id"] = parent_id
            if entry.calls:
                one["calls"] = entry.calls
            if entry.answers:
                one["answers"] = entry.answers
            if entry.is_synthetic:
                one["is_synthetic"] = True
            if entry.label:
                one["label"] = entry.label
                one["target_entry_id"] = entry.target_entry_id
                if entry.target_entry_id in places:
                    one["target_place"] = places[entry.target_entry_id]
            self._bodies.append(entry.body)
            self._first_byte += len(entry.body)
            previous_id = one["entry_id"]
            places[previous_id] = place
            described.append(one)
        return described


def _target_ids(append: Append) -> list[str]:
    return [entry.target_entry_id for entry in append.entries if entry.target_entry_id]


def _superseded(entries: Sequence[NewEntry], described: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a call says about the entries that its labels supersede.

    The own ones are counted here; the database knows whether another one was superseded before.
    """
    marks = [one for one in described if one.get("label") is Label.SUPERSEDED]
    own = {one["target_place"] for one in marks if "target_place" in one}
    others = {one["target_entry_id"] for one in marks if "target_place" not in one}
    return {
        "superseded_turn_count": sum(entries[place].kind in _TURNS for place in own),
        "superseded_ids": sorted(others) or None,
    }


async def append_plain(database: Database, tenant_id: str, appends: Sequence[Append]) -> list[AppendResult]:
    """Make plain appends in one round trip and one transaction.

    An append is BUSY if it would wait for a lock or if a rule refuses it; `append_waiting` then
    gives the reason.
    """
    (statement, parameters), ids = plain_statement(tenant_id, appends)
    rows = {row["session_id"]: row for row in await database.call(tenant_id, statement, parameters)}
    return [
        _result(append, rows.get(append.key.session_id), [entry_id])
        for append, entry_id in zip(appends, ids, strict=True)
    ]


def plain_statement(tenant_id: str, appends: Sequence[Append]) -> tuple[Statement, list[str]]:
    """Return the statement that makes plain appends, and the id of each entry."""
    calls = Calls()
    ids = [entry_id for append in appends for entry_id in calls.add_append(append)]
    return (_APPEND_PLAIN, calls.parameters(tenant_id)), ids


async def append_entries(database: Database, tenant_id: str, appends: Sequence[Append]) -> list[AppendResult]:
    """Make any appends in one round trip and one transaction; each has its own result.

    An append is BUSY if it would wait for a lock or if a rule refuses it.
    """
    made = [_statement_of(append) for append in appends]
    if len(made) == 1:  # The statement sets its scope.
        rows = [await database.call(tenant_id, *made[0][0])]
    else:
        rows = await transact(database, tenant_id, *(statement for statement, _ in made))
    return [
        _result(append, found[0] if found else None, ids)
        for append, found, (_, ids) in zip(appends, rows, made, strict=True)
    ]


async def append_waiting(database: Database, append: Append, stubs: Sequence[Stub] = ()) -> AppendResult:
    """Make one append, with the stubs of its entries, in one round trip and one transaction.

    It waits for the transcript's lock, and its result gives the reason if a rule refuses it.
    """
    statements, ids = waiting_statements(append, stubs)
    return waiting_result(append, ids, await transact(database, append.key.tenant_id, *statements))


def waiting_statements(append: Append, stubs: Sequence[Stub] = ()) -> tuple[list[Statement], list[str]]:
    """Return the statements of `append_waiting`, and the ids of the entries."""
    key = append.key
    statement, ids = _statement_of(append)
    statements: list[Statement] = [(_SQL["lock_for_append"], key_parameters(key)), statement]
    if stubs:
        statements.append(
            insert_stubs_statement(key, stubs, idempotency_key=append.idempotency_key, first_entry_id=ids[0])
        )
    state = key_parameters(key, idempotency_key=append.idempotency_key, target_ids=_target_ids(append))
    return [*statements, (_SQL["read_append_state"], state)], ids


def waiting_result(append: Append, ids: Sequence[str], rows: Sequence[Sequence[Row]]) -> AppendResult:
    """Return the result from the rows of each of the statements."""
    _, made, *_, (state,) = rows
    return _result(append, made[0], ids) if made else refuse_append(append, _state_of(state))


def _statement_of(append: Append) -> tuple[Statement, list[str]]:
    calls = Calls()
    ids = calls.add_append(append)
    statement = _APPEND_PLAIN if _is_plain(append) else _APPEND
    return (statement, calls.parameters(append.key.tenant_id)), ids


def _result(append: Append, row: Row | None, entry_ids: Sequence[str]) -> AppendResult:
    if row is None:
        return _BUSY
    head = head_of(row)
    first_seq = head.seq - len(append.entries) + 1
    return AppendResult(AppendOutcome.APPENDED, head, first_seq, tuple(entry_ids))


def _state_of(row: Row) -> AppendState:
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


def first_entry_statement(key: Key, entry: NewEntry, writer: Writer, *, incarnation: str) -> Statement:
    """Return the statement that writes the first entry of the transcript with this incarnation."""
    calls = Calls()
    calls.add(key, [entry], writer, incarnation=incarnation)
    return _APPEND_FIRST, calls.parameters(key.tenant_id)


async def write_entries(
    connection: Connection, key: Key, entries: Sequence[NewEntry], writer: Writer, *, state: str = "LIVE"
) -> Head:
    """Write entries into a transcript in this state, whose row the transaction holds."""
    calls = Calls()
    calls.add(key, entries, writer, state=state)
    cursor = await connection.execute(_APPEND, calls.parameters(key.tenant_id), binary=True)
    row = await cursor.fetchone()
    if row is None:
        raise LookupError("the transaction holds the transcript's row")
    return head_of(row)
