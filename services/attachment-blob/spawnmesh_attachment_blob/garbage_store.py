"""What the collector asks and tells the database. Each function is one step of a transaction that the caller has open."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.comparison import BlobEntry
from spawnmesh_attachment_blob.store import CondemnedBlob

_SQL = load_statements("spawnmesh_attachment_blob")


@dataclass(frozen=True, slots=True)
class Page:
    """Where a page begins, behind `after`, and how much it holds at most."""

    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What a released set leaves; `has_files` where it is not removed yet."""

    set_id: str
    state_time: datetime
    has_files: bool = False


BEFORE_ALL_TOMBSTONES = Tombstone("", datetime.min.replace(tzinfo=UTC))


async def claim_collection(connection: Connection, tenant_id: str, interval_seconds: float) -> bool:
    """Whether the tenant's turn has come and the caller is the one to work for it."""
    arguments = {"tenant_id": tenant_id, "interval_seconds": interval_seconds}
    return await (await connection.execute(_SQL["claim_collection"], arguments)).fetchone() is not None


async def unremoved_sets(connection: Connection, tenant_id: str, page: Page, age_seconds: int) -> list[str]:
    """Ids of sets that are RELEASED, or were left unfinished, for longer than this and have files left."""
    return await _ids(connection, "unremoved_sets", "set_id", tenant_id, page, age_seconds)


async def outlived_sets(connection: Connection, tenant_id: str, page: Page, age_seconds: int) -> list[str]:
    """Ids of sets that are ATTACHED for longer than the tenant's retention, which is what counts here."""
    return await _ids(connection, "outlived_sets", "set_id", tenant_id, page, age_seconds)


async def abandoned_sets(connection: Connection, tenant_id: str, page: Page, age_seconds: int) -> list[str]:
    """Ids of sets of attachments that are STAGED for longer than this."""
    return await _ids(connection, "abandoned_sets", "set_id", tenant_id, page, age_seconds)


async def expired_uploads(connection: Connection, tenant_id: str, page: Page, age_seconds: int) -> list[str]:
    """Rows of uploads whose time is over for longer than this, or whose removal was cut off."""
    return await _ids(connection, "expired_uploads", "row_id", tenant_id, page, age_seconds)


async def unsettled_blobs(connection: Connection, tenant_id: str, page: Page, age_seconds: int) -> list[str]:
    """Hashes of blobs that nobody refers to and that are not STORED for longer than this."""
    return await _ids(connection, "unsettled_blobs", "sha256", tenant_id, page, age_seconds)


async def _ids(
    connection: Connection, statement: str, column: str, tenant_id: str, page: Page, age_seconds: int
) -> list[str]:
    """A page, in the order of the ids. Turns plans of the transaction to indexes."""
    await connection.execute(_SQL["keep_to_indexes"])
    arguments = {"tenant_id": tenant_id, "after": page.after, "limit": page.limit, "age_seconds": age_seconds}
    return [row[column] for row in await (await connection.execute(_SQL[statement], arguments)).fetchall()]


async def old_tombstones(
    connection: Connection, tenant_id: str, after: Tombstone, limit: int, age_seconds: int
) -> list[Tombstone]:
    """Tombstones older than this, behind `after`, the oldest first. Turns plans of the transaction to indexes."""
    await connection.execute(_SQL["keep_to_indexes"])
    arguments = {
        "tenant_id": tenant_id,
        "after_time": after.state_time,
        "after_id": after.set_id,
        "limit": limit,
        "age_seconds": age_seconds,
    }
    cursor = await connection.execute(_SQL["old_tombstones"], arguments)
    return [Tombstone(row["set_id"], row["state_time"], row["has_files"]) for row in await cursor.fetchall()]


async def forget_tombstones(connection: Connection, tenant_id: str, after: Tombstone, page: Sequence[Tombstone]) -> int:
    """Deletes those of a page, which begins behind `after`, that have no files, in the transaction that has read it; how many."""
    arguments = {
        "tenant_id": tenant_id,
        "after_time": after.state_time,
        "after_id": after.set_id,
        "last_time": page[-1].state_time,
        "last_id": page[-1].set_id,
        "kept_ids": [tombstone.set_id for tombstone in page if tombstone.has_files],
    }
    return (await connection.execute(_SQL["forget_tombstones"], arguments)).rowcount


async def condemn_blobs(connection: Connection, tenant_id: str, hashes: Sequence[str]) -> None:
    """Marks for deletion what nobody refers to."""
    await connection.execute(_SQL["condemn_blobs"], {"tenant_id": tenant_id, "hashes": list(hashes)})


async def lock_condemned_blobs(connection: Connection, tenant_id: str, hashes: Sequence[str]) -> list[CondemnedBlob]:
    """Those that are marked for deletion still. Whoever wants to store one of them waits until the transaction ends."""
    arguments = {"tenant_id": tenant_id, "hashes": list(hashes)}
    cursor = await connection.execute(_SQL["lock_condemned_blobs"], arguments)
    return [CondemnedBlob(row["sha256"], row["object_key"]) for row in await cursor.fetchall()]


async def blobs_between(connection: Connection, tenant_id: str, page: Page, until: str | None) -> list[BlobEntry]:
    """Blobs whose keys are behind the page's beginning and not behind `until`, by key."""
    arguments = {"tenant_id": tenant_id, "after": page.after, "until": until, "limit": page.limit}
    cursor = await connection.execute(_SQL["blobs_between"], arguments)
    return [
        BlobEntry(
            row["object_key"], row["sha256"], row["size_bytes"], row["state"] == "STORED", row["state"] == "PENDING"
        )
        for row in await cursor.fetchall()
    ]


async def upload_keys_between(connection: Connection, tenant_id: str, after: str, until: str | None) -> set[str]:
    """Keys at which uploads that are not COMPLETE may have an object."""
    arguments = {"tenant_id": tenant_id, "after": after, "until": until}
    cursor = await connection.execute(_SQL["upload_keys_between"], arguments)
    return {row["object_key"] for row in await cursor.fetchall()}


async def claim_orphan(connection: Connection, tenant_id: str, sha256: str, object_key: str) -> bool:
    """Whether bytes that have no row are ours to delete; whoever wants to store them waits until the transaction ends."""
    arguments = {"tenant_id": tenant_id, "sha256": sha256, "object_key": object_key}
    return await (await connection.execute(_SQL["claim_orphan"], arguments)).fetchone() is not None


async def lock_blob_elsewhere(connection: Connection, tenant_id: str, sha256: str, object_key: str) -> bool:
    """Whether these bytes have their row under another key, so that the object under this one is superfluous until the transaction ends."""
    arguments = {"tenant_id": tenant_id, "sha256": sha256, "object_key": object_key}
    return await (await connection.execute(_SQL["lock_blob_elsewhere"], arguments)).fetchone() is not None


async def mark_lost(connection: Connection, tenant_id: str, blob: BlobEntry) -> None:
    """STORED -> PENDING: who sends the bytes next has them put under another key, and what refers to them has them again."""
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await connection.execute(_SQL["keep_to_indexes"])
    await connection.execute(_SQL["mark_lost"], arguments)


async def forget_lost_uploads(connection: Connection, tenant_id: str, sha256: str) -> None:
    """Uploads that say they have these bytes, which are lost, are forgotten: who announces one sends the bytes again."""
    await connection.execute(_SQL["keep_to_indexes"])
    arguments = {"tenant_id": tenant_id, "sha256": sha256}
    while (await connection.execute(_SQL["forget_lost_upload"], arguments)).rowcount:
        pass


async def mark_found(connection: Connection, tenant_id: str, blob: BlobEntry) -> None:
    """PENDING -> STORED, for one that something refers to: its object was restored."""
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await connection.execute(_SQL["keep_to_indexes"])
    await connection.execute(_SQL["mark_found"], arguments)


async def sets_of(connection: Connection, tenant_id: str, sha256: str) -> list[str]:
    """Ids of some sets that refer to these bytes."""
    cursor = await connection.execute(_SQL["stored_sets_of"], {"tenant_id": tenant_id, "sha256": sha256})
    return sorted({row["set_id"] for row in await cursor.fetchall()})


async def open_multiparts(connection: Connection, tenant_id: str) -> set[str]:
    """Ids of multipart uploads that somebody may go on with, or is to abort."""
    cursor = await connection.execute(_SQL["open_multiparts"], {"tenant_id": tenant_id})
    return {row["multipart_id"] for row in await cursor.fetchall()}


async def mark_purging(connection: Connection, tenant_id: str, settings_version: int) -> None:
    """No set is staged for the tenant from now on, nor is one in the middle of it; a tenant with newer settings stays as it is."""
    arguments = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["wait_for_stagings"], arguments)
    await connection.execute(_SQL["mark_purging"], arguments)


async def lock_purge(connection: Connection, tenant_id: str, settings_version: int) -> bool:
    """Whether what there is of the tenant is to be purged still; that does not change until the transaction ends."""
    arguments = {"tenant_id": tenant_id, "settings_version": settings_version}
    await connection.execute(_SQL["bar_tenant"], arguments)
    row = await (await connection.execute(_SQL["lock_purge"], arguments)).fetchone()
    return row is None or bool(row["is_to_purge"])


async def purge_rows(connection: Connection, tenant_id: str, limit: int) -> int:
    """Deletes up to `limit` rows of each of the tenant's tables but that of tenants; how many. Turns plans of the transaction to indexes."""
    count = 0
    await connection.execute(_SQL["keep_to_indexes"])
    for statement in ("purge_set_files", "purge_sets", "purge_uploads", "purge_blobs"):
        cursor = await connection.execute(_SQL[statement], {"tenant_id": tenant_id, "limit": limit})
        count += cursor.rowcount
    return count


async def purge_tenant(connection: Connection, tenant_id: str) -> int:
    """Deletes the tenant's own row; how many."""
    return (await connection.execute(_SQL["purge_tenant"], {"tenant_id": tenant_id})).rowcount


async def has_rows(connection: Connection, tenant_id: str) -> bool:
    """Whether any table has a row of the tenant."""
    row = await (await connection.execute(_SQL["has_rows"], {"tenant_id": tenant_id})).fetchone()
    return row is None or bool(row["has_rows"])
