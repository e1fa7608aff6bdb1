"""Imports of session files. Each function runs in the caller's transaction."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from psycopg.types.json import Jsonb
from spawnmesh_core.line_chain import NO_LINES
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_transcript.domain.dialects.reading import FileMemory
from spawnmesh_transcript.domain.transcripts import Key

_SQL = load_statements(__name__)
_PREPARE = False
"""Lookups by ids are planned for each run: a plan that was kept since the table was nearly empty
reads the whole table for each id, until the next ANALYZE.
"""


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """The progress of an import; the table `imports` documents the fields."""

    state: str = "IMPORTING"
    byte_count: int = 0
    line_count: int = 0
    entry_count: int = 0
    malformed: tuple[tuple[int, str], ...] = ()
    newest_source_id: str = ""
    leaf_entry_id: str = ""
    is_branched: bool = False
    incarnation: str = ""
    line_chain: bytes = NO_LINES
    dialect: str = ""
    memory: FileMemory = field(default_factory=FileMemory)
    compaction_ids: tuple[str, ...] = ()


async def begin_import(connection: Connection, key: Key, *, incarnation: str) -> bool:
    """Insert a transcript in state IMPORTING and its import.

    Returns False if the session has or had a transcript.
    """
    parameters = {**_key(key), "incarnation": incarnation}
    if await (await connection.execute(_SQL["insert_importing_transcript"], parameters)).fetchone() is None:
        return False
    await connection.execute(_SQL["insert_import"], _key(key))
    return True


async def lock_import(connection: Connection, key: Key, incarnation: str) -> bool:
    """Lock this import until the transaction ends. Returns False if it is complete or deleted."""
    parameters = {**_key(key), "incarnation": incarnation}
    return (await connection.execute(_SQL["lock_import"], parameters)).rowcount == 1


async def read_import(connection: Connection, key: Key) -> ImportProgress | None:
    """Return the progress; None if the session has no import."""
    row = await (await connection.execute(_SQL["read_import"], _key(key))).fetchone()
    if row is None:
        return None
    memory = row["memory"]
    values: dict[str, Any] = {
        **row,
        "malformed": tuple((int(line), str(problem)) for line, problem in row["malformed"]),
        "memory": FileMemory(**{**memory, "turn_parents": tuple(memory.get("turn_parents", ()))}),
        "compaction_ids": tuple(row["compaction_ids"]),
    }
    return ImportProgress(**values)


async def advance_import(
    connection: Connection, key: Key, known: ImportProgress, reached: ImportProgress
) -> bool:
    """Store the new progress. Needs `lock_import`.

    Returns False if another stream advanced the import, or it is gone.
    """
    parameters = {
        **_key(key),
        "known_byte_count": known.byte_count,
        "known_line_chain": known.line_chain,
        "byte_count": reached.byte_count,
        "line_chain": reached.line_chain,
        "line_count": reached.line_count,
        "entry_count": reached.entry_count,
        "malformed": Jsonb(reached.malformed),
        "newest_source_id": reached.newest_source_id,
        "leaf_entry_id": reached.leaf_entry_id,
        "is_branched": reached.is_branched,
        "dialect": reached.dialect,
        "memory": Jsonb(asdict(reached.memory)),
        "compaction_ids": list(reached.compaction_ids),
    }
    return (await connection.execute(_SQL["advance_import"], parameters)).rowcount == 1


async def find_entry_seqs(connection: Connection, key: Key, entry_ids: Collection[str]) -> dict[str, int]:
    """Return the seqs of those ids that the transcript has."""
    parameters = {**_key(key), "entry_ids": list(entry_ids)}
    cursor = await connection.execute(_SQL["find_entry_seqs"], parameters, prepare=_PREPARE)
    return {row["entry_id"]: row["seq"] for row in await cursor.fetchall()}


async def list_messages_off_branch(connection: Connection, key: Key, leaf_entry_id: str) -> list[str]:
    """Return the messages that are not on the branch of this leaf, oldest first."""
    parameters = {**_key(key), "leaf_entry_id": leaf_entry_id}
    cursor = await connection.execute(_SQL["list_messages_off_branch"], parameters, prepare=_PREPARE)
    return [row["entry_id"] for row in await cursor.fetchall()]


async def find_newest_on_branch(
    connection: Connection, key: Key, leaf_entry_id: str, entry_ids: Collection[str]
) -> str:
    """Return the newest of these entries on the branch of the leaf, empty if none is."""
    parameters = {**_key(key), "leaf_entry_id": leaf_entry_id, "entry_ids": list(entry_ids)}
    cursor = await connection.execute(_SQL["find_newest_on_branch"], parameters, prepare=_PREPARE)
    row = await cursor.fetchone()
    return str(row["entry_id"]) if row else ""


async def insert_imported_summary(
    connection: Connection, key: Key, *, seq: int, entry_id: str, last_source_seq: int, token_count: int
) -> None:
    """Put an imported summary of everything up to `last_source_seq` in force. Needs
    `lock_import`.
    """
    parameters = {
        **_key(key),
        "seq": seq,
        "entry_id": entry_id,
        "last_source_seq": last_source_seq,
        "token_count": token_count,
    }
    await connection.execute(_SQL["insert_imported_summary"], parameters)


async def complete_import(connection: Connection, key: Key, known: ImportProgress) -> bool:
    """Complete the import and make the transcript readable. Needs `lock_import`.

    Returns False if another stream advanced the import, or it is gone.
    """
    parameters = {**_key(key), "known_byte_count": known.byte_count, "known_line_chain": known.line_chain}
    if (await connection.execute(_SQL["complete_import"], parameters)).rowcount != 1:
        return False
    return (await connection.execute(_SQL["publish_transcript"], _key(key))).rowcount == 1


async def abort_import(connection: Connection, key: Key, *, age_seconds: float) -> bool:
    """Abort the import. Needs `lock_import`.

    Returns False if it is complete, or was advanced within `age_seconds`.
    """
    parameters = {**_key(key), "age_seconds": age_seconds}
    return (await connection.execute(_SQL["abort_import"], parameters)).rowcount == 1


async def delete_aborted_import(connection: Connection, key: Key, incarnation: str) -> None:
    """Delete an aborted import whose entries are deleted, and its transcript. Needs
    `lock_import`.
    """
    await connection.execute(_SQL["delete_importing_transcript"], {**_key(key), "incarnation": incarnation})
    await connection.execute(_SQL["delete_aborted_import"], _key(key))


async def list_stale_imports(
    connection: Connection, tenant_id: str, *, age_seconds: float
) -> list[tuple[Key, str]]:
    """Return some imports without progress for this long, each with its incarnation."""
    cursor = await connection.execute(
        _SQL["list_stale_imports"], {"tenant_id": tenant_id, "age_seconds": age_seconds}
    )
    return [(Key(tenant_id, row["session_id"]), row["incarnation"]) for row in await cursor.fetchall()]


def _key(key: Key) -> dict[str, str]:
    return {"tenant_id": key.tenant_id, "session_id": key.session_id}
