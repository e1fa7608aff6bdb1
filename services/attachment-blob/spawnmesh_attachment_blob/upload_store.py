"""Uploads and their parts in the database. Each function is one step of a transaction that the caller has open."""

from dataclasses import dataclass

from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain.uploads import (
    TenantUploads,
    Upload,
    UploadKey,
    UploadSpec,
    UploadState,
    UploadSums,
)
from spawnmesh_attachment_blob.multiparts import StoredPart

_SQL = load_statements("spawnmesh_attachment_blob")


@dataclass(frozen=True, slots=True)
class Leftover:
    """The row of an upload that is being removed, and what of it may be in S3."""

    row_id: str
    object_key: str
    multipart_id: str


def _upload(row: DictRow) -> Upload:
    return Upload(
        spec=UploadSpec(row["upload_id"], row["name"], row["size_bytes"], row["sha256"], row["mime_type"]),
        session_id=row["session_id"],
        row_id=row["row_id"],
        state=UploadState(row["state"]),
        generation=row["generation"],
        object_key=row["object_key"],
        multipart_id=row["multipart_id"],
        part_bytes=row["part_bytes"],
        create_time=row["create_time"],
        expire_time=row["expire_time"],
    )


def _named(tenant_id: str, key: UploadKey) -> dict[str, str]:
    return {"tenant_id": tenant_id, "session_id": key.session_id, "upload_id": key.upload_id}


def _written(tenant_id: str, upload: Upload) -> dict[str, str | int]:
    """For statements of who writes to an upload, in its generation."""
    return {
        "tenant_id": tenant_id,
        "row_id": upload.row_id,
        "session_id": upload.session_id,
        "generation": upload.generation,
    }


def _left(row: DictRow | None) -> Leftover | None:
    return None if row is None else Leftover(row["row_id"], row["object_key"], row["multipart_id"])


async def insert(
    connection: Connection, tenant_id: str, spec: UploadSpec, session_id: str, object_key: str, ttl_seconds: int
) -> None:
    """An OPEN upload of that owner, unless it has one of that id."""
    await connection.execute(
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


async def lock_room(connection: Connection, tenant_id: str, key: UploadKey) -> TenantUploads:
    """What the tenant has beside this upload. Nobody else opens an upload of it until the transaction ends."""
    await connection.execute(_SQL["lock_room"], {"tenant_id": tenant_id})
    row = await (await connection.execute(_SQL["count_uploads"], _named(tenant_id, key))).fetchone()
    assert row is not None  # Counts have a row for nothing, too.
    opened = UploadSums(row["open_count"], row["open_bytes"])
    return TenantUploads(opened, UploadSums(row["finished_count"], row["finished_bytes"]), row["first_expire_time"])


async def get(connection: Connection, tenant_id: str, key: UploadKey) -> Upload | None:
    """The upload as it is."""
    cursor = await connection.execute(_SQL["get_upload"], _named(tenant_id, key))
    row = await cursor.fetchone()
    return None if row is None else _upload(row)


async def lock(connection: Connection, tenant_id: str, key: UploadKey) -> str | None:
    """The upload's row. Nobody else records, completes or removes anything of it until the transaction ends."""
    row = await (await connection.execute(_SQL["lock_upload"], _named(tenant_id, key))).fetchone()
    return None if row is None else str(row["row_id"])


async def lock_stored_blob(connection: Connection, tenant_id: str, spec: UploadSpec, session_id: str = "") -> bool:
    """Whether the bytes are stored already, for the tenant or, where a session is named, within reach of its runs; nobody takes them away until
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


async def take(connection: Connection, tenant_id: str, row_id: str, ttl_seconds: int) -> bool:
    """Begins a generation, of who alone writes from now on, in a row that is locked; False where the upload takes no bytes any more."""
    arguments = {"tenant_id": tenant_id, "row_id": row_id, "ttl_seconds": ttl_seconds}
    return await (await connection.execute(_SQL["take_upload"], arguments)).fetchone() is not None


async def parts(connection: Connection, tenant_id: str, row_id: str) -> list[StoredPart]:
    """The durable parts, in order."""
    cursor = await connection.execute(_SQL["parts_of_upload"], {"tenant_id": tenant_id, "row_id": row_id})
    return [StoredPart(row["part_number"], row["size_bytes"], row["etag"]) for row in await cursor.fetchall()]


async def set_multipart(connection: Connection, tenant_id: str, upload: Upload, multipart_id: str) -> bool:
    """Remembers where parts are put; False for who was taken over."""
    arguments = {**_written(tenant_id, upload), "multipart_id": multipart_id}
    return await (await connection.execute(_SQL["set_multipart"], arguments)).fetchone() is not None


async def add_part(connection: Connection, tenant_id: str, upload: Upload, part: StoredPart, ttl_seconds: int) -> bool:
    """The part counts as durable; False for who was taken over."""
    arguments = {
        **_written(tenant_id, upload),
        "part_number": part.number,
        "size_bytes": part.size_bytes,
        "etag": part.etag,
        "ttl_seconds": ttl_seconds,
    }
    return await (await connection.execute(_SQL["add_part"], arguments)).fetchone() is not None


async def store_blob(connection: Connection, tenant_id: str, upload: Upload) -> str:
    """The bytes are STORED; where they are, which is elsewhere if somebody stored them before."""
    arguments = {
        "tenant_id": tenant_id,
        "sha256": upload.spec.sha256,
        "size_bytes": upload.spec.size_bytes,
        "object_key": upload.object_key,
    }
    row = await (await connection.execute(_SQL["store_uploaded_blob"], arguments)).fetchone()
    return str(row["object_key"]) if row else upload.object_key


async def complete(connection: Connection, tenant_id: str, upload: Upload, ttl_seconds: int) -> bool:
    """OPEN -> COMPLETE; False for who was taken over."""
    arguments = {**_written(tenant_id, upload), "ttl_seconds": ttl_seconds}
    if await (await connection.execute(_SQL["complete_upload"], arguments)).fetchone() is None:
        return False
    await connection.execute(_SQL["forget_parts"], {"tenant_id": tenant_id, "row_id": upload.row_id})
    return True


async def keep(connection: Connection, tenant_id: str, upload: Upload, ttl_seconds: int) -> None:
    """A COMPLETE upload, which is locked, is kept for so long from now on, if less than half of that is left of its time."""
    arguments = {"tenant_id": tenant_id, "row_id": upload.row_id, "ttl_seconds": ttl_seconds}
    await connection.execute(_SQL["keep_upload"], arguments)


async def abort(connection: Connection, tenant_id: str, upload: Upload) -> Leftover | None:
    """OPEN -> ABORTING, for who writes to it; what there is to remove. None for one that is COMPLETE, taken over or gone."""
    return _left(await (await connection.execute(_SQL["abort_upload"], _written(tenant_id, upload))).fetchone())


async def abort_expired(connection: Connection, tenant_id: str, row_id: str) -> Leftover | None:
    """OPEN -> ABORTING, if its time is over; what there is to remove. None for one that is COMPLETE, alive or gone."""
    arguments = {"tenant_id": tenant_id, "row_id": row_id}
    return _left(await (await connection.execute(_SQL["abort_expired_upload"], arguments)).fetchone())


async def forget(connection: Connection, tenant_id: str, row_id: str) -> None:
    """Deletes the row of an ABORTING upload."""
    await connection.execute(_SQL["forget_upload"], {"tenant_id": tenant_id, "row_id": row_id})


async def forget_expired(connection: Connection, tenant_id: str, row_id: str) -> str | None:
    """Deletes the row of a COMPLETE upload whose time is over; the hash that it referred to, None where there was nothing to delete."""
    arguments = {"tenant_id": tenant_id, "row_id": row_id}
    row = await (await connection.execute(_SQL["forget_expired_upload"], arguments)).fetchone()
    return None if row is None else str(row["sha256"])
