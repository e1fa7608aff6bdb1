"""Rows of sets and their files.

`stage_set` opens a transaction of its own. Every other function runs within the caller's.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import orjson
from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetState, SetToStage
from spawnmesh_attachment_blob.store.tenants import block_purge

_SQL = load_statements(__name__)


class StageOutcome(StrEnum):
    """The result of `stage_set`."""

    WRITTEN = "WRITTEN"
    EXISTS = "EXISTS"
    POLICY_CHANGED = "POLICY_CHANGED"
    UNKNOWN_TENANT = "UNKNOWN_TENANT"
    UPLOAD_GONE = "UPLOAD_GONE"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a set that is being staged.

    For a set that was WRITTEN, `unstored` are the hashes whose objects the caller puts before it
    commits.
    """

    outcome: StageOutcome
    unstored: frozenset[str]
    create_time: datetime


def _set(row: DictRow) -> AttachmentSet:
    files = tuple(StoredFile(*file) for file in row["files"])
    return AttachmentSet(row["set_id"], row["session_id"], SetState(row["state"]), files, row["create_time"])


@asynccontextmanager
async def stage_set(
    database: Database, tenant_id: str, limits: AttachmentLimits, requested: SetToStage
) -> AsyncIterator[tuple[Connection, StagedRows]]:
    """Open a transaction that writes the set as if its objects existed, if these limits still hold.

    It takes one round trip. It waits for transactions that stage or release the set, and for those
    that put or delete one of the objects; until it ends, they wait for it. Other transactions do
    not see its rows. Only WRITTEN and UPLOAD_GONE leave rows: commit WRITTEN when the objects of
    `unstored` are put, and roll back UPLOAD_GONE by leaving the block with an error. After every
    other outcome there is nothing to roll back.
    """
    files = requested.files
    given = {
        "limits": [int(limits.enabled), limits.max_files, limits.max_file_bytes, limits.max_total_bytes],
        "set_id": requested.set_id,
        "session_id": requested.session_id,
        "names": [file.name for file in files],
        "sizes": [file.size_bytes for file in files],
        "hashes": [file.sha256 for file in files],
        "mime_types": [file.mime_type for file in files],
        "uploaded": [file.sha256 for file in files if file.sha256 not in requested.data_by_hash],
        "key_suffix": requested.key_suffix,
    }
    arguments = {"tenant_id": tenant_id, "set": orjson.dumps(given).decode()}
    async with database.transaction_with_statement(tenant_id, _SQL["stage_set"], arguments) as (
        connection,
        rows,
    ):
        (row,) = rows
        yield (
            connection,
            StagedRows(StageOutcome(row["outcome"]), frozenset(row["unstored"] or ()), row["create_time"]),
        )


async def get_set(connection: Connection, tenant_id: str, set_id: str) -> AttachmentSet | None:
    """Return the set, or None."""
    cursor = await connection.execute(_SQL["get_set"], {"tenant_id": tenant_id, "set_id": set_id})
    row = await cursor.fetchone()
    return None if row is None else _set(row)


async def list_sets(
    connection: Connection, tenant_id: str, session_id: str, before: str, limit: int
) -> list[AttachmentSet]:
    """Return sets with ids below `before`, newest first. An empty text disables its condition."""
    arguments = {"tenant_id": tenant_id, "session_id": session_id, "before": before, "limit": limit}
    cursor = await connection.execute(_SQL["list_sets"], arguments)
    return [_set(row) for row in await cursor.fetchall()]


async def lock_set(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Block other removals of the set's files until the transaction ends."""
    await connection.execute(_SQL["lock_set"], {"tenant_id": tenant_id, "set_id": set_id})


async def attach_set(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Change STAGED to ATTACHED. Any other state is left unchanged."""
    await connection.execute(_SQL["attach_set"], {"tenant_id": tenant_id, "set_id": set_id})


async def release_set(connection: Connection, tenant_id: str, set_id: str) -> bool:
    """Change the set to RELEASED and return whether it has files to remove.

    An unknown set becomes a tombstone. The sets of a tenant that is being purged are left to the
    purge.
    """
    await block_purge(connection, tenant_id)
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
