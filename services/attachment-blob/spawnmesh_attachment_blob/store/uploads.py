"""Rows of uploads and their parts. Each function runs within the caller's transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.rows import class_row, kwargs_row
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.uploads import (
    StoredPart,
    Upload,
    UploadKey,
    UploadSpec,
    UploadState,
    UploadTotals,
    UploadUsage,
)

_SQL = load_statements(__name__)


@dataclass(frozen=True, slots=True)
class AbortedUpload:
    """An upload that is ABORTING, and what it may have left in S3."""

    row_id: str
    object_key: str
    multipart_id: str


def _upload(
    *, upload_id: str, name: str, size_bytes: int, sha256: str, mime_type: str, state: str, **columns: Any
) -> Upload:
    spec = UploadSpec(upload_id, name, size_bytes, sha256, mime_type)
    return Upload(spec=spec, state=UploadState(state), **columns)


def _key_arguments(tenant_id: str, key: UploadKey) -> dict[str, str]:
    return {"tenant_id": tenant_id, "row_id": key.row_id}


def _write_arguments(tenant_id: str, upload: Upload) -> dict[str, str | int]:
    """Build the arguments of statements that are fenced by the upload's generation."""
    return {"tenant_id": tenant_id, "row_id": upload.key.row_id, "generation": upload.generation}


async def insert_upload(
    connection: Connection,
    tenant_id: str,
    spec: UploadSpec,
    session_id: str,
    object_key: str,
    ttl_seconds: int,
) -> bool:
    """Insert an OPEN upload of this owner, unless it exists. Return whether it was inserted."""
    cursor = await connection.execute(
        _SQL["insert_upload"],
        {
            "tenant_id": tenant_id,
            "upload_id": spec.upload_id,
            "session_id": session_id,
            "name": spec.name,
            "size_bytes": spec.size_bytes,
            "sha256": spec.sha256,
            "mime_type": spec.mime_type,
            "object_key": object_key,
            "ttl_seconds": ttl_seconds,
        },
    )
    return await cursor.fetchone() is not None


async def count_uploads(connection: Connection, tenant_id: str, key: UploadKey) -> UploadUsage:
    """Count the tenant's uploads without this one.

    Other transactions that begin an upload of the tenant wait until this transaction ends.
    """
    await connection.execute(_SQL["lock_upload_quota"], {"tenant_id": tenant_id})
    row = await (await connection.execute(_SQL["count_uploads"], _key_arguments(tenant_id, key))).fetchone()
    assert row is not None  # An aggregate returns a row for an empty table, too.
    return UploadUsage(
        UploadTotals(row["open_count"], row["open_bytes"]),
        UploadTotals(row["finished_count"], row["finished_bytes"]),
        row["first_expire_time"],
    )


async def get_upload(connection: Connection, tenant_id: str, key: UploadKey) -> Upload | None:
    """Return the upload, or None."""
    async with connection.cursor(row_factory=kwargs_row(_upload)) as cursor:
        await cursor.execute(_SQL["get_upload"], _key_arguments(tenant_id, key))
        return await cursor.fetchone()


async def lock_upload(connection: Connection, tenant_id: str, key: UploadKey) -> bool:
    """Lock the upload and return whether it exists.

    Until the transaction ends, no other one records, completes or removes anything of it.
    """
    row = await (await connection.execute(_SQL["lock_upload"], _key_arguments(tenant_id, key))).fetchone()
    return row is not None


async def take_over_upload(connection: Connection, tenant_id: str, key: UploadKey, ttl_seconds: int) -> bool:
    """Begin a generation of a locked upload. Writes of earlier generations are refused from now on.

    Returns False if the upload accepts no bytes any more.
    """
    arguments = {**_key_arguments(tenant_id, key), "ttl_seconds": ttl_seconds}
    return await (await connection.execute(_SQL["take_over_upload"], arguments)).fetchone() is not None


async def list_parts(connection: Connection, tenant_id: str, key: UploadKey) -> list[StoredPart]:
    """Return the durable parts in order."""
    cursor = await connection.execute(_SQL["list_parts"], _key_arguments(tenant_id, key))
    return [StoredPart(row["part_number"], row["size_bytes"], row["etag"]) for row in await cursor.fetchall()]


async def set_multipart(connection: Connection, tenant_id: str, upload: Upload, multipart_id: str) -> bool:
    """Record the id of the multipart upload in S3. Return False if the upload was taken over."""
    arguments = {**_write_arguments(tenant_id, upload), "multipart_id": multipart_id}
    return await (await connection.execute(_SQL["set_multipart"], arguments)).fetchone() is not None


async def add_part(
    connection: Connection, tenant_id: str, upload: Upload, part: StoredPart, ttl_seconds: int
) -> bool:
    """Record a durable part. Return False if the upload was taken over."""
    arguments = {
        **_write_arguments(tenant_id, upload),
        "part_number": part.number,
        "size_bytes": part.size_bytes,
        "etag": part.etag,
        "ttl_seconds": ttl_seconds,
    }
    return await (await connection.execute(_SQL["add_part"], arguments)).fetchone() is not None


async def complete_upload(connection: Connection, tenant_id: str, upload: Upload, ttl_seconds: int) -> bool:
    """Change OPEN to COMPLETE and delete the parts' rows.

    Return False if the upload was taken over.
    """
    arguments = {**_write_arguments(tenant_id, upload), "ttl_seconds": ttl_seconds}
    if await (await connection.execute(_SQL["complete_upload"], arguments)).fetchone() is None:
        return False
    await connection.execute(_SQL["delete_parts"], _key_arguments(tenant_id, upload.key))
    return True


async def extend_upload(connection: Connection, tenant_id: str, upload: Upload, ttl_seconds: int) -> None:
    """Keep a locked COMPLETE upload for `ttl_seconds` from now on.

    Writes nothing while more than half of that time is left.
    """
    arguments = {**_key_arguments(tenant_id, upload.key), "ttl_seconds": ttl_seconds}
    await connection.execute(_SQL["extend_upload"], arguments)


async def abort_upload(connection: Connection, tenant_id: str, upload: Upload) -> AbortedUpload | None:
    """Change OPEN to ABORTING. Return None if the upload is COMPLETE, taken over or gone."""
    return await _abort(connection, "abort_upload", _write_arguments(tenant_id, upload))


async def abort_expired_upload(connection: Connection, tenant_id: str, row_id: str) -> AbortedUpload | None:
    """Change an expired upload from OPEN to ABORTING.

    Return None if it is COMPLETE, alive or gone.
    """
    arguments = {"tenant_id": tenant_id, "row_id": row_id}
    return await _abort(connection, "abort_expired_upload", arguments)


async def _abort(
    connection: Connection, statement: str, arguments: Mapping[str, str | int]
) -> AbortedUpload | None:
    async with connection.cursor(row_factory=class_row(AbortedUpload)) as cursor:
        await cursor.execute(_SQL[statement], arguments)
        return await cursor.fetchone()


async def delete_aborted_upload(connection: Connection, tenant_id: str, row_id: str) -> None:
    """Delete the row of an ABORTING upload. Its bytes are not in use any more."""
    await connection.execute(_SQL["delete_aborted_upload"], {"tenant_id": tenant_id, "row_id": row_id})


async def delete_expired_upload(connection: Connection, tenant_id: str, row_id: str) -> str | None:
    """Delete the row of an expired COMPLETE upload.

    Return its hash; None if nothing was deleted.
    """
    arguments = {"tenant_id": tenant_id, "row_id": row_id}
    row = await (await connection.execute(_SQL["delete_expired_upload"], arguments)).fetchone()
    return None if row is None else str(row["sha256"])


async def delete_lost_uploads(connection: Connection, tenant_id: str, sha256: str) -> None:
    """Delete COMPLETE uploads whose bytes are LOST, so that senders send the bytes again."""
    await connection.execute(_SQL["delete_lost_uploads"], {"tenant_id": tenant_id, "sha256": sha256})
