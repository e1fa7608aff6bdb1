"""Rows of blobs, one for each stored content.

Each function runs within the caller's transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statement_batches import execute_batch
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.comparison import BlobEntry, hash_of_key
from spawnmesh_attachment_blob.domain.uploads import Upload, UploadSpec

_SQL = load_statements(__name__)
_MARK = (_SQL["lock_blobs"], _SQL["mark_unreferenced_blobs"])
_LOCK_MARKED = (_SQL["lock_marked_blobs"], _SQL["list_unreferenced_blobs"])
_CLAIM_ORPHANS = (_SQL["claim_orphans"], _SQL["lock_blobs_elsewhere"])
_Arguments = dict[str, str | list[str] | None]


@dataclass(frozen=True, slots=True)
class MarkedBlob:
    """A blob that is DELETING: its object is to be deleted."""

    sha256: str
    object_key: str


async def get_object_key(connection: Connection, tenant_id: str, sha256: str) -> str | None:
    """Return the key of the object with this hash; None if there is no such blob."""
    cursor = await connection.execute(_SQL["get_object_key"], {"tenant_id": tenant_id, "sha256": sha256})
    row = await cursor.fetchone()
    return None if row is None else str(row["object_key"])


async def mark_blobs_of_set(connection: Connection, tenant_id: str, set_id: str) -> set[str]:
    """Mark the blobs that only this set refers to as DELETING. Return their object keys."""
    return await _mark(connection, {"tenant_id": tenant_id, "hashes": [], "set_id": set_id})


async def mark_unreferenced_blobs(connection: Connection, tenant_id: str, hashes: Sequence[str]) -> None:
    """Mark those of the blobs that have no reference as DELETING."""
    await _mark(connection, {"tenant_id": tenant_id, "hashes": list(hashes), "set_id": None})


async def _mark(connection: Connection, arguments: _Arguments) -> set[str]:
    _, marked = await execute_batch(connection, _MARK, arguments)
    return {row["object_key"] for row in marked}


async def lock_marked_blobs_of_set(connection: Connection, tenant_id: str, set_id: str) -> list[MarkedBlob]:
    """Lock and return the set's blobs that are still DELETING.

    Transactions that want to store one of them wait until this transaction ends.
    """
    return await _lock_marked(connection, {"tenant_id": tenant_id, "hashes": [], "set_id": set_id})


async def lock_marked_blobs(
    connection: Connection, tenant_id: str, hashes: Sequence[str]
) -> list[MarkedBlob]:
    """Lock and return those of the blobs that are still DELETING.

    Transactions that want to store one of them wait until this transaction ends.
    """
    return await _lock_marked(connection, {"tenant_id": tenant_id, "hashes": list(hashes), "set_id": None})


async def _lock_marked(connection: Connection, arguments: _Arguments) -> list[MarkedBlob]:
    locked, unreferenced = await execute_batch(connection, _LOCK_MARKED, arguments)
    hashes = {row["sha256"] for row in unreferenced}
    return [MarkedBlob(row["sha256"], row["object_key"]) for row in locked if row["sha256"] in hashes]


async def delete_blobs(connection: Connection, tenant_id: str, hashes: Collection[str]) -> None:
    """Delete the rows of blobs whose objects are deleted."""
    await connection.execute(_SQL["delete_blobs"], {"tenant_id": tenant_id, "hashes": list(hashes)})


async def claim_orphans(
    connection: Connection, tenant_id: str, keys: Collection[str]
) -> tuple[set[str], list[str]]:
    """Return the hashes for which a DELETING row was inserted, and the keys of superfluous objects.

    An object is superfluous if its bytes have no other row, or are stored under another key.
    Transactions that want to store the bytes, or to delete them under the other key, wait until
    this transaction ends.
    """
    hashed = [(hash_of_key(key), key) for key in keys]
    elsewhere = {
        "tenant_id": tenant_id,
        "hashes": [sha256 for sha256, _ in hashed],
        "keys": [key for _, key in hashed],
    }
    claims, orphans = await execute_batch(connection, _CLAIM_ORPHANS, elsewhere)
    claimed = {row["sha256"] for row in claims}
    superfluous = {row["object_key"] for row in orphans}
    return claimed, [key for sha256, key in hashed if sha256 in claimed or key in superfluous]


async def lock_stored_blob(
    connection: Connection, tenant_id: str, spec: UploadSpec, session_id: str = ""
) -> bool:
    """Lock the blob with the announced bytes and return whether it is stored.

    If a session is given, only blobs count that its runs may read. The blob is not deleted before
    the transaction ends.
    """
    arguments = {
        "tenant_id": tenant_id,
        "sha256": spec.sha256,
        "size_bytes": spec.size_bytes,
        "session_id": session_id,
    }
    cursor = await connection.execute(_SQL["lock_stored_blob"], arguments)
    return await cursor.fetchone() is not None


async def store_uploaded_blob(connection: Connection, tenant_id: str, upload: Upload) -> str:
    """Change the upload's blob to STORED and return its object key.

    The key differs from the upload's key if another call stored the same bytes before.
    """
    arguments = {
        "tenant_id": tenant_id,
        "sha256": upload.spec.sha256,
        "size_bytes": upload.spec.size_bytes,
        "object_key": upload.object_key,
    }
    row = await (await connection.execute(_SQL["store_uploaded_blob"], arguments)).fetchone()
    return str(row["object_key"]) if row else upload.object_key


async def mark_lost(connection: Connection, tenant_id: str, blob: BlobEntry) -> None:
    """Change STORED to LOST.

    The next call that sends the bytes stores them under another key, and all sets that refer to
    them can be read again.
    """
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await connection.execute(_SQL["mark_lost"], arguments)


async def mark_found(connection: Connection, tenant_id: str, blob: BlobEntry) -> None:
    """Change LOST to STORED for a referenced blob whose object was restored."""
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await connection.execute(_SQL["mark_found"], arguments)
