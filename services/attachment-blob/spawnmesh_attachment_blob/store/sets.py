"""Rows of sets and their files.

`stage_set` opens a transaction of its own. Every other function runs within the caller's.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import orjson
from psycopg.rows import kwargs_row
from spawnmesh_postgres.database import Connection, Database, scope_statement
from spawnmesh_postgres.statement_batches import execute_batch
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_purges import JOIN_WRITERS, join_writers

from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.items import FileRef, StoredFile
from spawnmesh_attachment_blob.domain.names import name_problem
from spawnmesh_attachment_blob.domain.references import ReferencedSets
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetState, SetToStage, object_key
from spawnmesh_attachment_blob.domain.staging import NoRoom, StagedRows, StageRefusal, WrittenSet, outcome_of
from spawnmesh_attachment_blob.domain.storage import StorageUsage

_SQL = load_statements(__name__)
ATTACH_SET = _SQL["attach_set"]

_NOT_PREPARED = StagedRows(None, None)
_FILE_COLUMNS = 4  # What a statement selects behind them does not describe the file.
_Arguments = dict[str, str | int | bool | list[str] | None]


def _set(
    *, state: str, files: Sequence[Sequence[Any]], reader_session_ids: Iterable[str], **columns: Any
) -> AttachmentSet:
    return AttachmentSet(
        state=SetState(state),
        files=tuple(StoredFile(*file[:_FILE_COLUMNS]) for file in files),
        reader_session_ids=tuple(reader_session_ids),
        **columns,
    )


@asynccontextmanager
async def stage_set(
    database: Database, tenant_id: str, limits: AttachmentLimits, requested: SetToStage
) -> AsyncIterator[tuple[Connection, WrittenSet | StageRefusal | NoRoom]]:
    """Open a transaction that writes the set as if its objects existed, if these limits still hold.

    It takes one round trip, and one more for each attempt to restore blobs that are DELETING, LOST
    or deleted.

    It waits for transactions that stage or release the set, and for those that put or delete one of
    the objects; until it ends, they wait for it. Others may stage bytes that were stored before.
    Other transactions do not see its rows.

    Commit a WrittenSet when its objects are put, with their bytes in the tenant's usage. Roll back
    UPLOAD_GONE and REFERENCE_GONE by leaving the block with an error. After every other refusal
    there is nothing to roll back.

    All transactions take their locks in one order, so that no two wait for each other: the set,
    then blobs without a row in the order of their hashes, then blobs with a row in that order.
    """
    arguments = _stage_arguments(tenant_id, limits, requested)
    async with database.transaction_with_statements(
        tenant_id, (JOIN_WRITERS, _SQL["stage_set"], _SQL["share_blobs"]), arguments
    ) as (connection, (_, staged, shared)):
        rows = _staged(**staged[0]) if staged else _NOT_PREPARED
        rows = rows.with_stored(frozenset(row["sha256"] for row in shared))
        while rows.can_restore(requested):
            rows = await _stage_alone(connection, tenant_id, arguments, requested)
        yield connection, outcome_of(rows, requested, limits)


async def _stage_alone(
    connection: Connection, tenant_id: str, arguments: _Arguments, requested: SetToStage
) -> StagedRows:
    """Stage the set in a new transaction that restores blobs which are DELETING or LOST.

    The locks are given back first, so that all are taken again in their order. Until the
    transaction ends, others that want one of the blobs wait.
    """
    restart = ("rollback", "begin", scope_statement(tenant_id), JOIN_WRITERS)
    statements = (*restart, _SQL["stage_set"], _SQL["lock_blobs"], _SQL["restore_blobs"])
    keys = {sha256: object_key(sha256, requested.key_suffix) for sha256 in requested.data_by_hash}
    parameters = {**arguments, "keys": orjson.dumps(keys).decode()}
    *_, staged, locked, restored = await execute_batch(connection, statements, parameters)
    rows = _staged(**staged[0]) if staged else _NOT_PREPARED
    rows = rows.with_stored(frozenset(row["sha256"] for row in locked if row["state"] == "STORED"))
    return rows.with_restored(frozenset(row["sha256"] for row in restored))


def _stage_arguments(tenant_id: str, limits: AttachmentLimits, requested: SetToStage) -> _Arguments:
    files = [
        {
            "position": position,
            "name": file.name,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "mime_type": file.mime_type,
        }
        for position, file in enumerate(requested.files, 1)
    ]
    blobs: dict[str, dict[str, Any]] = {
        file.sha256: {
            "sha256": file.sha256,
            "size_bytes": file.size_bytes,
            "object_key": object_key(file.sha256, requested.key_suffix),
        }
        for file in requested.files
        if file.sha256 in requested.data_by_hash  # Else the bytes were stored before.
    }
    return {
        "tenant_id": tenant_id,
        "enabled": limits.enabled,
        "max_file_count": limits.max_files,
        "max_file_bytes": limits.max_file_bytes,
        "max_total_bytes": limits.max_total_bytes,
        "set_id": requested.set_id,
        "session_id": requested.session_id,
        "run_id": requested.run_id,
        "reader_session_ids": list(requested.reader_session_ids),
        # A JSON array costs the caller less than a list for each column.
        "files": orjson.dumps(files).decode(),
        "new_bytes": sum(blob["size_bytes"] for blob in blobs.values()) if requested.is_limited else 0,
        "blobs": orjson.dumps(list(blobs.values())).decode(),
        "hashes": [file.sha256 for file in requested.files],
    }


def _staged(
    *,
    enabled: bool,
    max_file_count: int,
    max_file_bytes: int,
    max_total_bytes: int,
    create_time: datetime | None,
    added: Iterable[str],
    needed_bytes: int,
    **usage: int,
) -> StagedRows:
    return StagedRows(
        AttachmentLimits(
            enabled=enabled,
            max_files=max_file_count,
            max_file_bytes=max_file_bytes,
            max_total_bytes=max_total_bytes,
        ),
        create_time,
        frozenset(added),
        usage=StorageUsage(**usage),
        needed_bytes=needed_bytes,
    )


async def get_set(connection: Connection, tenant_id: str, set_id: str) -> AttachmentSet | None:
    """Return the set, or None."""
    async with connection.cursor(row_factory=kwargs_row(_set)) as cursor:
        await cursor.execute(_SQL["get_set"], {"tenant_id": tenant_id, "set_id": set_id})
        return await cursor.fetchone()


async def list_referenced_sets(
    connection: Connection, tenant_id: str, refs: Collection[FileRef]
) -> ReferencedSets:
    """Return those of the sets that exist, with those of the named files that they have."""
    arguments = {
        "tenant_id": tenant_id,
        "set_ids": [ref.set_id for ref in refs],
        # No file has a name that is not portable, and PostgreSQL accepts no NUL.
        "names": ["" if name_problem(ref.name) else ref.name for ref in refs],
    }
    rows = await (await connection.execute(_SQL["list_referenced_sets"], arguments)).fetchall()
    lost_hashes = frozenset(
        sha256 for row in rows for *_, sha256, _mime_type, is_lost in row["files"] if is_lost
    )
    return ReferencedSets({row["set_id"]: _set(**row) for row in rows}, lost_hashes)


async def list_sets(
    connection: Connection, tenant_id: str, session_id: str, before: str, limit: int
) -> list[AttachmentSet]:
    """Return sets with ids below `before`, newest first. An empty text disables its condition."""
    statement = _SQL["list_sets_of_session" if session_id else "list_sets"]
    arguments = {"tenant_id": tenant_id, "session_id": session_id, "before": before, "limit": limit}
    async with connection.cursor(row_factory=kwargs_row(_set)) as cursor:
        await cursor.execute(statement, arguments)
        return await cursor.fetchall()


async def lock_set(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Block other removals of the set's files until the transaction ends."""
    await connection.execute(_SQL["lock_set"], {"tenant_id": tenant_id, "set_id": set_id})


async def attach_set(database: Database, tenant_id: str, set_id: str) -> AttachmentSet | None:
    """Change STAGED to ATTACHED, and return the set, or None, in one round trip.

    Any other state is left unchanged.
    """
    arguments = {"tenant_id": tenant_id, "set_id": set_id}
    _, rows = await database.transact(tenant_id, (ATTACH_SET, arguments), (_SQL["get_set"], arguments))
    return _set(**rows[0]) if rows else None


async def release_set(connection: Connection, tenant_id: str, set_id: str) -> bool:
    """Change the set to RELEASED and return whether it has files to remove.

    An unknown set becomes a tombstone. The sets of a tenant that is being purged are left to the
    purge.
    """
    await join_writers(connection, tenant_id)
    released = await connection.execute(_SQL["release_set"], {"tenant_id": tenant_id, "set_id": set_id})
    if not released.rowcount:
        return False
    cursor = await connection.execute(_SQL["has_files"], {"tenant_id": tenant_id, "set_id": set_id})
    row = await cursor.fetchone()
    return row is not None and bool(row["has_files"])


async def release_staged_set(connection: Connection, tenant_id: str, set_id: str, age_seconds: int) -> bool:
    """Release the set if it has been STAGED for longer than this.

    Return whether it was released.
    """
    arguments = {"tenant_id": tenant_id, "set_id": set_id, "age_seconds": age_seconds}
    return await (await connection.execute(_SQL["release_staged_set"], arguments)).fetchone() is not None


async def delete_files(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Delete the files' rows of a released set. The set itself remains as a tombstone."""
    await connection.execute(_SQL["delete_files"], {"tenant_id": tenant_id, "set_id": set_id})
