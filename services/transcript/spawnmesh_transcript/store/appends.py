"""Appends: the general statement, and one for plain appends, which nearly all are."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.entries import Head, NewEntry
from spawnmesh_transcript.domain.large_results import Stub
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.store.entries import described
from spawnmesh_transcript.store.payloads import stub_rows
from spawnmesh_transcript.store.rows import Row, head_of

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class Append:
    """Entries for one transcript, prepared under the settings of this version."""

    key: Key
    entries: Sequence[NewEntry]
    idempotency_key: str
    content_hash: bytes
    writer: Writer
    settings_version: int


class AppendOutcome(StrEnum):
    """The outcomes of an append, which the SQL function `append_entries` documents."""

    SETTINGS_CHANGED = "SETTINGS_CHANGED"
    NOT_FOUND = "NOT_FOUND"
    KEY_REUSED = "KEY_REUSED"
    CLAIM_LOST = "CLAIM_LOST"
    TARGET_NOT_FOUND = "TARGET_NOT_FOUND"
    REPLAYED = "REPLAYED"
    APPENDED = "APPENDED"
    BUSY = "BUSY"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome of an append, with the fields that the outcome gives."""

    outcome: AppendOutcome
    head: Head | None
    first_seq: int
    entry_ids: tuple[str, ...]
    missing_entry_id: str

    @property
    def is_committed(self) -> bool:
        """Return whether the entries are in the transcript, by this append or by the one it
        repeats.
        """
        return self.outcome in (AppendOutcome.APPENDED, AppendOutcome.REPLAYED)

    @property
    def is_busy(self) -> bool:
        """Return whether nothing was checked or written, because a lock was held or a rule needs
        a check.
        """
        return self.outcome is AppendOutcome.BUSY


_BUSY = AppendResult(AppendOutcome.BUSY, None, 0, (), "")


def are_plain(appends: Sequence[Append]) -> bool:
    """Return whether each append is one entry that refers to no other, and each has its own
    transcript.
    """
    return len({append.key for append in appends}) == len(appends) and all(map(_is_plain, appends))


def _is_plain(append: Append) -> bool:
    return len(append.entries) == 1 and not (append.entries[0].label or append.entries[0].target_entry_id)


async def append_plain(database: Database, tenant_id: str, appends: Sequence[Append]) -> list[AppendResult]:
    """Make plain appends in one round trip and one transaction.

    An append is BUSY if it would wait for a lock or if a rule refuses it; `append_entries` then
    gives the reason.
    """
    calls = []
    first_byte = 1
    for append in appends:
        (entry,) = append.entries
        calls.append({**fence_parameters(append, first_byte), **described(entry)})
        first_byte += len(entry.body)
    bodies = b"".join(append.entries[0].body for append in appends)
    parameters = {"calls": Jsonb(calls, orjson.dumps), "bodies": bodies}
    rows = {
        row["session_id"]: row for row in await database.call(tenant_id, _SQL["append_plain"], parameters)
    }
    return [_plain_result(rows.get(call["session_id"]), call["entry_id"]) for call in calls]


def _plain_result(row: Row | None, entry_id: str) -> AppendResult:
    if row is None:
        return _BUSY
    return AppendResult(AppendOutcome.APPENDED, head_of(row), row["seq"], (entry_id,), "")


async def append_entries(
    database: Database, tenant_id: str, appends: Sequence[Append], *, waits: bool
) -> list[AppendResult]:
    """Make the appends in one round trip and one transaction; each has its own result.

    Without `waits`, an append is BUSY if another transaction holds its transcript.
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
    return [append_result(row, call["entries"]) for row, call in zip(rows, calls, strict=True)]


def call_parameters(append: Append, first_byte: int) -> dict[str, Any]:
    """Return an `append_input` for the calls of a statement. Its bodies begin at `first_byte`,
    from 1.
    """
    target_ids = [entry.target_entry_id for entry in append.entries if entry.target_entry_id]
    return {
        **fence_parameters(append, first_byte),
        "entries": [described(entry) for entry in append.entries],
        "entry_count": len(append.entries),
        "target_ids": target_ids or None,
    }


def fence_parameters(append: Append, first_byte: int) -> dict[str, Any]:
    """Return the fields of an `append_input` without its entries: the transcript, the writer and
    the key.
    """
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


def append_result(row: Row, described: Sequence[dict[str, Any]]) -> AppendResult:
    """Return the result of a call that was made with these `entries`."""
    return AppendResult(
        outcome=AppendOutcome(row["outcome"]),
        head=head_of(row) if row["seq"] is not None else None,
        first_seq=row["first_seq"] or 0,
        entry_ids=tuple(row["entry_ids"] or (one["entry_id"] for one in described)),
        missing_entry_id=row["missing_entry_id"] or "",
    )


async def append_with_stubs(database: Database, append: Append, stubs: Sequence[Stub]) -> AppendResult:
    """Make one append that waits, with the stubs of its entries, in one transaction."""
    call = call_parameters(append, 1)
    bodies = b"".join(entry.body for entry in append.entries)
    parameters = {
        "session_id": append.key.session_id,
        "calls": Jsonb([call]),
        "bodies": bodies,
        **stub_rows(stubs),
    }
    (row,) = await database.call(append.key.tenant_id, _SQL["append_with_stubs"], parameters)
    return append_result(row, call["entries"])
