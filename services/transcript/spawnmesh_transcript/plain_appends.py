"""What nearly every append is: one entry that refers to no other. PostgreSQL makes all of a transaction in one statement."""

from collections.abc import Sequence

import orjson
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.store import Append, AppendOutcome, described, fence_parameters, head_of

_SQL = load_statements("spawnmesh_transcript")
_BUSY = AppendOutcome("BUSY", None, 0, (), "", None)


def are_plain(appends: Sequence[Append]) -> bool:
    """Whether each is one entry that refers to no other, for a transcript of its own among them."""
    return len({append.key for append in appends}) == len(appends) and all(map(_is_plain, appends))


def _is_plain(append: Append) -> bool:
    return len(append.entries) == 1 and not (append.entries[0].label or append.entries[0].target_entry_id)


async def append_plain(database: Database, tenant_id: str, appends: Sequence[Append]) -> list[AppendOutcome]:
    """Makes the appends, which must be plain, in one transaction of its own and one round trip.

    One that would have to wait is BUSY, as is one that any rule stands against: `store.append_entries` says which.
    """
    calls = []
    first_byte = 1
    for append in appends:
        (entry,) = append.entries
        calls.append({**fence_parameters(append, first_byte), **described(entry)})
        first_byte += len(entry.body)
    bodies = b"".join(append.entries[0].body for append in appends)
    parameters = {"calls": Jsonb(calls, orjson.dumps), "bodies": bodies}
    rows = {row["session_id"]: row for row in await database.call(tenant_id, _SQL["append_plain"], parameters)}
    return [_outcome(rows.get(call["session_id"]), call["entry_id"]) for call in calls]


def _outcome(row: DictRow | None, entry_id: str) -> AppendOutcome:
    return AppendOutcome("APPENDED", head_of(row), row["seq"], (entry_id,), "", None) if row else _BUSY
