"""Rows of tenants, and the tables with such rows.

Each function runs within the caller's transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import kwargs_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements
from spawnmesh_postgres.tenant_tables import TenantTables

from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.limits import AttachmentPolicy
from spawnmesh_attachment_blob.domain.sets import SetState
from spawnmesh_attachment_blob.domain.uploads import NamedUpload, UploadKey, UploadState

_SQL = load_statements(__name__)

# Jobs go first, so that no operation goes on. Rows go before those that they refer to.
TENANT_TABLES = TenantTables(
    rows=("jobs", "operations", "set_files", "sets", "upload_parts", "uploads", "blobs"),
    settings="attachment_tenants",
    work="tenant_work",
)


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A prepared tenant, with the set and the uploads that were requested along with it.

    `set_state` is None if there is no such set. `uploads` are keyed by upload id.
    """

    settings_version: int
    policy: AttachmentPolicy
    set_state: SetState | None
    uploads: dict[str, NamedUpload]


def _tenant(
    *,
    settings_version: int,
    enabled: bool,
    max_file_count: int,
    max_file_bytes: int,
    max_total_bytes: int,
    set_state: str | None,
    uploads: Sequence[Sequence[Any]] | None,
    **policy: int,
) -> TenantRow:
    limits = AttachmentLimits(
        enabled=enabled,
        max_files=max_file_count,
        max_file_bytes=max_file_bytes,
        max_total_bytes=max_total_bytes,
    )
    return TenantRow(
        settings_version,
        AttachmentPolicy(limits, **policy),
        None if set_state is None else SetState(set_state),
        {
            upload_id: NamedUpload(UploadState(upload_state), StoredFile(*file))
            for upload_id, *file, upload_state in uploads or ()
        },
    )


async def put_tenant(
    connection: Connection, tenant_id: str, settings_version: int, policy: AttachmentPolicy
) -> None:
    """Store the policy, unless the stored one has the same or a newer version."""
    limits = policy.limits
    await connection.execute(
        _SQL["put_tenant"],
        {
            "tenant_id": tenant_id,
            "settings_version": settings_version,
            "enabled": limits.enabled,
            "max_file_count": limits.max_files,
            "max_file_bytes": limits.max_file_bytes,
            "max_total_bytes": limits.max_total_bytes,
            "retention_seconds": policy.retention_seconds,
            "download_url_seconds": policy.download_url_seconds,
            "max_stored_bytes": policy.max_stored_bytes,
        },
    )


async def get_tenant(
    connection: Connection, tenant_id: str, set_id: str = "", uploads: Collection[UploadKey] = ()
) -> TenantRow | None:
    """Return the tenant with the state of one set and the given uploads.

    Returns None for a tenant that was not prepared, or that is being purged.
    """
    arguments = {
        "tenant_id": tenant_id,
        "set_id": set_id,
        "upload_row_ids": [key.row_id for key in uploads],
    }
    async with connection.cursor(row_factory=kwargs_row(_tenant)) as cursor:
        await cursor.execute(_SQL["get_tenant"], arguments)
        return await cursor.fetchone()


async def list_tenants(connection: Connection, after: str, limit: int) -> list[str]:
    """Return ids of prepared tenants behind `after`, in the scope of every tenant."""
    cursor = await connection.execute(_SQL["list_tenants"], {"after": after, "limit": limit})
    return [row["tenant_id"] for row in await cursor.fetchall()]


async def claim_collection(connection: Connection, tenant_id: str, interval_seconds: float) -> bool:
    """Claim this interval's collection of the tenant.

    Return False if it is not due or is claimed.
    """
    arguments = {"tenant_id": tenant_id, "interval_seconds": interval_seconds}
    return await (await connection.execute(_SQL["claim_collection"], arguments)).fetchone() is not None
