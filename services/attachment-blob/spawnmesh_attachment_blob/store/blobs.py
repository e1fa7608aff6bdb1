"""Rows of blobs, one for each stored content.

Each function runs within the caller's transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.comparison import BlobEntry
from spawnmesh_attachment_blob.domain.uploads import Upload, UploadSpec
from spawnmesh_attachment_blob.store.planner import prefer_index_scans

_SQL = load_statements(__name__)


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
    arguments = {"tenant_id": tenant_id, "set_id": set_id}
    cursor = await connection.execute(_SQL["mark_blobs_of_set"], arguments)
    return {row["object_key"] for row in await cursor.fetchall()}


async def mark_unreferenced_blobs(connection: Connection, tenant_id: str, hashes: Sequence[str]) -> None:
    """Mark those of the blobs that have no reference as DELETING."""
    arguments = {"tenant_id": tenant_id, "hashes": list(hashes)}
    await connection.execute(_SQL["mark_unreferenced_blobs"], arguments)


async def lock_marked_blobs_of_set(connection: Connection, tenant_id: str, set_id: str) -> list[MarkedBlob]:
    """Lock and return the set's blobs that are still DELETING.

    Transactions that want to store one of them wait until this transaction ends.
    """
    arguments = {"tenant_id": tenant_id, "set_id": set_id}
    cursor = await connection.execute(_SQL["lock_marked_blobs_of_set"], arguments)
    return [MarkedBlob(row["sha256"], row["object_key"]) for row in await cursor.fetchall()]


async def lock_marked_blobs(
    connection: Connection, tenant_id: str, hashes: Sequence[str]
) -> list[MarkedBlob]:
    """Lock and return those of the blobs that are still DELETING.

    Transactions that want to store one of them wait until this transaction ends.
    """
    arguments = {"tenant_id": tenant_id, "hashes": list(hashes)}
    cursor = await connection.execute(_SQL["lock_marked_blobs"], arguments)
    return [MarkedBlob(row["sha256"], row["object_key"]) for row in await cursor.fetchall()]


async def delete_blobs(connection: Connection, tenant_id: str, hashes: Collection[str]) -> None:
    """Delete the rows of blobs whose objects are deleted."""
    await connection.execute(_SQL["delete_blobs"], {"tenant_id": tenant_id, "hashes": list(hashes)})


async def claim_orphan(connection: Connection, tenant_id: str, sha256: str, object_key: str) -> bool:
    """Insert a DELETING row for an object without a row. Return False if the bytes have a row.

    Transactions that want to store the bytes wait until this transaction ends.
    """
    arguments = {"tenant_id": tenant_id, "sha256": sha256, "object_key": object_key}
    return await (await connection.execute(_SQL["claim_orphan"], arguments)).fetchone() is not None


async def lock_blob_elsewhere(connection: Connection, tenant_id: str, sha256: str, object_key: str) -> bool:
    """Lock the blob if its bytes are stored under another key than this one.

    Return whether they are.

    Until the transaction ends, the object under this key is superfluous.
    """
    arguments = {"tenant_id": tenant_id, "sha256": sha256, "object_key": object_key}
    return await (await connection.execute(_SQL["lock_blob_elsewhere"], arguments)).fetchone() is not None


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
    them can be read again. Changes the planner settings of the transaction.
    """
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await prefer_index_scans(connection)
    await connection.execute(_SQL["mark_lost"], arguments)


async def mark_found(connection: Connection, tenant_id: str, blob: BlobEntry) -> None:
    """Change LOST to STORED for a referenced blob whose object was restored.

    Changes the planner settings of the transaction.
    """
    arguments = {"tenant_id": tenant_id, "sha256": blob.sha256, "object_key": blob.key}
    await prefer_index_scans(connection)
    await connection.execute(_SQL["mark_found"], arguments)
