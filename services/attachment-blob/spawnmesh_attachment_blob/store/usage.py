"""The counters of the bytes that a tenant uses.

Each function runs within the caller's transaction, as its last statement.
"""

from psycopg.errors import NotNullViolation
from spawnmesh_postgres.database import Connection, commit_with
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.storage import StorageUsage

_SQL = load_statements(__name__)


class StorageFull(Exception):
    """The stored bytes do not fit into the tenant's quota. Nothing was committed."""


async def commit_with_usage(
    connection: Connection,
    tenant_id: str,
    *,
    stored_bytes: int = 0,
    uploading_bytes: int = 0,
    is_limited: bool = False,
) -> None:
    """Add to the counters and commit, in one round trip.

    With `is_limited`, raise StorageFull if the stored bytes do not fit into the quota.
    """
    added = {
        "tenant_id": tenant_id,
        "stored_bytes": stored_bytes,
        "uploading_bytes": uploading_bytes,
        "limited_bytes": stored_bytes if is_limited else 0,
    }
    try:
        await commit_with(connection, _SQL["add_usage"], added)
    except NotNullViolation:
        raise StorageFull from None


async def reserve_upload(connection: Connection, tenant_id: str, size_bytes: int) -> bool:
    """Count the bytes of a new upload. Return False, and count nothing, if they do not fit."""
    arguments = {"tenant_id": tenant_id, "size_bytes": size_bytes}
    return await (await connection.execute(_SQL["reserve_upload"], arguments)).fetchone() is not None


async def get_usage(connection: Connection, tenant_id: str) -> StorageUsage | None:
    """Return the bytes that the tenant uses; None if it is not prepared."""
    row = await (await connection.execute(_SQL["get_usage"], {"tenant_id": tenant_id})).fetchone()
    return None if row is None else StorageUsage(**row)
