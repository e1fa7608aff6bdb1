"""Queries of the garbage collector. Each function runs within the caller's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.comparison import BlobEntry

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Asks for at most `limit` rows behind the key `after`."""

    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A released set. `has_files` is true if its files are not removed yet."""

    set_id: str
    state_time: datetime
    has_files: bool = False


BEFORE_ALL_TOMBSTONES = Tombstone("", datetime.min.replace(tzinfo=UTC))


async def unremoved_sets(
    connection: Connection, tenant_id: str, page: KeyPage, age_seconds: int
) -> list[str]:
    """Return ids of sets that have been RELEASED for longer than this and still have files."""
    return await _keys(connection, "unremoved_sets", tenant_id, page, age_seconds)


async def outlived_sets(connection: Connection, tenant_id: str, page: KeyPage, age_seconds: int) -> list[str]:
    """Return ids of sets that have been ATTACHED for longer than the tenant's retention.

    The retention is the age here; `age_seconds` is ignored.
    """
    return await _keys(connection, "outlived_sets", tenant_id, page, age_seconds)


async def abandoned_sets(
    connection: Connection, tenant_id: str, page: KeyPage, age_seconds: int
) -> list[str]:
    """Return ids of attachment sets that have been STAGED for longer than this."""
    return await _keys(connection, "abandoned_sets", tenant_id, page, age_seconds)


async def expired_uploads(
    connection: Connection, tenant_id: str, page: KeyPage, age_seconds: int
) -> list[str]:
    """Return row ids of uploads that expired longer ago than this.

    Includes uploads whose removal was interrupted.
    """
    return await _keys(connection, "expired_uploads", tenant_id, page, age_seconds)


async def unsettled_blobs(
    connection: Connection, tenant_id: str, page: KeyPage, age_seconds: int
) -> list[str]:
    """Return hashes of unreferenced blobs that have not been STORED for longer than this."""
    return await _keys(connection, "unsettled_blobs", tenant_id, page, age_seconds)


async def _keys(
    connection: Connection, statement: str, tenant_id: str, page: KeyPage, age_seconds: int
) -> list[str]:
    """Return a full page of the keys that are found, or all that are left, in their order."""
    found: list[str] = []
    after = page.after
    while True:
        limit = page.limit - len(found)
        arguments = {"tenant_id": tenant_id, "after": after, "limit": limit, "age_seconds": age_seconds}
        rows = await (await connection.execute(_SQL[statement], arguments)).fetchall()
        found += [row["key"] for row in rows if row["is_found"]]
        if len(rows) < limit or len(found) == page.limit:
            return found
        after = rows[-1]["key"]


async def old_tombstones(
    connection: Connection, tenant_id: str, after: Tombstone, limit: int, age_seconds: int
) -> list[Tombstone]:
    """Return tombstones older than this and behind `after`, the oldest first."""
    arguments = {
        "tenant_id": tenant_id,
        "after_time": after.state_time,
        "after_id": after.set_id,
        "limit": limit,
        "age_seconds": age_seconds,
    }
    cursor = await connection.execute(_SQL["old_tombstones"], arguments)
    return [Tombstone(row["set_id"], row["state_time"], row["has_files"]) for row in await cursor.fetchall()]


async def delete_tombstones(
    connection: Connection, tenant_id: str, after: Tombstone, page: Sequence[Tombstone]
) -> int:
    """Delete those of a page that have no files, and return how many.

    Call it in the transaction that read the page, which begins behind `after`.
    """
    arguments = {
        "tenant_id": tenant_id,
        "after_time": after.state_time,
        "after_id": after.set_id,
        "last_time": page[-1].state_time,
        "last_id": page[-1].set_id,
        "kept_ids": [tombstone.set_id for tombstone in page if tombstone.has_files],
    }
    return (await connection.execute(_SQL["delete_tombstones"], arguments)).rowcount


async def blobs_between(
    connection: Connection, tenant_id: str, page: KeyPage, until: str | None
) -> list[BlobEntry]:
    """Return blobs whose object keys are behind the page's start and not behind `until`, by key."""
    arguments = {"tenant_id": tenant_id, "after": page.after, "until": until, "limit": page.limit}
    cursor = await connection.execute(_SQL["blobs_between"], arguments)
    return [
        BlobEntry(
            row["object_key"],
            row["sha256"],
            row["size_bytes"],
            row["state"] == "STORED",
            row["state"] == "LOST",
        )
        for row in await cursor.fetchall()
    ]


async def upload_keys_between(
    connection: Connection, tenant_id: str, after: str, until: str | None
) -> set[str]:
    """Return the object keys of uploads that are not COMPLETE, within the range."""
    arguments = {"tenant_id": tenant_id, "after": after, "until": until}
    cursor = await connection.execute(_SQL["upload_keys_between"], arguments)
    return {row["object_key"] for row in await cursor.fetchall()}


async def stored_sets_of(connection: Connection, tenant_id: str, sha256: str) -> list[str]:
    """Return ids of up to ten sets that refer to these bytes."""
    cursor = await connection.execute(_SQL["stored_sets_of"], {"tenant_id": tenant_id, "sha256": sha256})
    return sorted({row["set_id"] for row in await cursor.fetchall()})


async def open_multiparts(connection: Connection, tenant_id: str) -> set[str]:
    """Return ids of multipart uploads that belong to an upload that is OPEN or ABORTING."""
    cursor = await connection.execute(_SQL["open_multiparts"], {"tenant_id": tenant_id})
    return {row["multipart_id"] for row in await cursor.fetchall()}
