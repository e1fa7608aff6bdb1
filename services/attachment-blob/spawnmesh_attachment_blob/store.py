"""Tenants, sets and blobs in the database. Each function is one step of a transaction that the caller has open."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson
from psycopg.rows import DictRow
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.domain.limits import TenantPolicy
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetState, SetToStage, StoredFile
from spawnmesh_attachment_blob.domain.uploads import NamedUpload, UploadState

_SQL = load_statements("spawnmesh_attachment_blob")


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A prepared tenant, with the set and the uploads that were asked for along with it; `set_state` is None where there is no such set."""

    settings_version: int
    policy: TenantPolicy
    purging: bool
    purged_version: int
    set_state: SetState | None
    uploads: dict[str, NamedUpload]


class StageOutcome(StrEnum):
    """What became of a set that was to be written down."""

    WRITTEN = "WRITTEN"
    EXISTS = "EXISTS"
    POLICY_CHANGED = "POLICY_CHANGED"
    UNKNOWN_TENANT = "UNKNOWN_TENANT"
    UPLOAD_GONE = "UPLOAD_GONE"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """For a set that was WRITTEN, the hashes whose objects are to be put before the transaction is committed."""

    outcome: StageOutcome
    unstored: frozenset[str]
    create_time: datetime


@dataclass(frozen=True, slots=True)
class CondemnedBlob:
    """A blob whose object is to be deleted."""

    sha256: str
    object_key: str


def _tenant(row: DictRow) -> TenantRow:
    limits = AttachmentLimits(
        enabled=row["enabled"],
        max_files=row["max_file_count"],
        max_file_bytes=row["max_file_bytes"],
        max_total_bytes=row["max_total_bytes"],
    )
    state = row["set_state"]
    return TenantRow(
        row["settings_version"],
        TenantPolicy(limits, row["retention_seconds"], row["download_url_seconds"]),
        row["purging"],
        row["purged_version"],
        None if state is None else SetState(state),
        {
            upload_id: NamedUpload(UploadState(upload_state), StoredFile(*file))
            for upload_id, *file, upload_state in row["uploads"] or ()
        },
    )


def _set(row: DictRow) -> AttachmentSet:
    files = tuple(StoredFile(*file) for file in row["files"])
    return AttachmentSet(row["set_id"], row["session_id"], SetState(row["state"]), files, row["create_time"])


async def bar_tenant(connection: Connection, tenant_id: str) -> None:
    """Nobody makes the tenant ready or purges a page of it until the transaction ends."""
    await connection.execute(_SQL["bar_tenant"], {"tenant_id": tenant_id})


async def put_tenant(connection: Connection, tenant_id: str, settings_version: int, policy: TenantPolicy) -> None:
    """This policy holds, unless the one stored is of the same version or a newer one. A purge of the tenant before that one is over."""
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
        },
    )


async def get_tenant(
    connection: Connection,
    tenant_id: str,
    set_id: str = "",
    upload_ids: Collection[str] = (),
    uploader_session_id: str = "",
) -> TenantRow | None:
    """The tenant, the state of one of its sets, and these uploads of the session, or of clients; None for one that was not prepared. Turns plans
    of the transaction to indexes where it looks for uploads.
    """
    if upload_ids:
        await connection.execute(_SQL["keep_to_indexes"])
    arguments = {
        "tenant_id": tenant_id,
        "set_id": set_id,
        "upload_ids": list(upload_ids),
        "uploader_session_id": uploader_session_id,
    }
    cursor = await connection.execute(_SQL["get_tenant"], arguments)
    row = await cursor.fetchone()
    return None if row is None else _tenant(row)


async def hold_off_purge(connection: Connection, tenant_id: str) -> None:
    """Whether the tenant is being purged does not change until the transaction ends."""
    await connection.execute(_SQL["hold_off_purge"], {"tenant_id": tenant_id})


async def list_tenants(connection: Connection, after: str, limit: int) -> list[str]:
    """Ids of prepared tenants behind `after`, in the scope of every tenant."""
    cursor = await connection.execute(_SQL["list_tenants"], {"tenant_id": None, "after": after, "limit": limit})
    return [row["tenant_id"] for row in await cursor.fetchall()]


def staging_of(tenant_id: str, limits: AttachmentLimits, wanted: SetToStage) -> tuple[str, dict[str, Any]]:
    """A statement, and its parameters, that writes a set down as if its objects were there, if these limits still hold.

    It waits for whoever stages or releases the set, or puts or deletes one of the objects. Until its transaction ends they wait for that, and
    nobody sees anything of it. After every outcome but WRITTEN and EXISTS the transaction has to be rolled back.
    """
    files = wanted.files
    given = {
        "limits": [int(limits.enabled), limits.max_files, limits.max_file_bytes, limits.max_total_bytes],
        "set_id": wanted.set_id,
        "session_id": wanted.session_id,
        "names": [file.name for file in files],
        "sizes": [file.size_bytes for file in files],
        "hashes": [file.sha256 for file in files],
        "mime_types": [file.mime_type for file in files],
        "uploaded": [file.sha256 for file in files if file.sha256 not in wanted.data_by_hash],
        "key_suffix": wanted.key_suffix,
    }
    return _SQL["stage_set"], {"tenant_id": tenant_id, "set": orjson.dumps(given).decode()}


def staged_rows(rows: Sequence[DictRow]) -> StagedRows:
    """What the statement answered."""
    (row,) = rows
    return StagedRows(StageOutcome(row["outcome"]), frozenset(row["unstored"] or ()), row["create_time"])


async def get_set(connection: Connection, tenant_id: str, set_id: str) -> AttachmentSet | None:
    """The set as it is."""
    cursor = await connection.execute(_SQL["get_set"], {"tenant_id": tenant_id, "set_id": set_id})
    row = await cursor.fetchone()
    return None if row is None else _set(row)


async def list_sets(
    connection: Connection, tenant_id: str, session_id: str, before: str, limit: int
) -> list[AttachmentSet]:
    """Sets that were finished, newest first, with ids below `before`; empty texts leave a condition out."""
    arguments = {"tenant_id": tenant_id, "session_id": session_id, "before": before, "limit": limit}
    cursor = await connection.execute(_SQL["list_sets"], arguments)
    return [_set(row) for row in await cursor.fetchall()]


async def get_object_key(connection: Connection, tenant_id: str, sha256: str) -> str | None:
    """Where the bytes with this hash are; None where nobody stores them."""
    cursor = await connection.execute(_SQL["get_object_key"], {"tenant_id": tenant_id, "sha256": sha256})
    row = await cursor.fetchone()
    return None if row is None else str(row["object_key"])


async def lock_set(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Nobody else removes the files of the set until the transaction ends."""
    await connection.execute(_SQL["lock_set"], {"tenant_id": tenant_id, "set_id": set_id})


async def attach_set(connection: Connection, tenant_id: str, set_id: str) -> None:
    """STAGED -> ATTACHED; any other state stays."""
    await connection.execute(_SQL["attach_set"], {"tenant_id": tenant_id, "set_id": set_id})


async def release_set(connection: Connection, tenant_id: str, set_id: str) -> bool:
    """Any state, or none -> RELEASED; whether files of the set are still to be removed. A tenant that is purged is left to that."""
    await hold_off_purge(connection, tenant_id)
    released = await connection.execute(_SQL["release_set"], {"tenant_id": tenant_id, "set_id": set_id})
    if not released.rowcount:
        return False
    cursor = await connection.execute(_SQL["has_files"], {"tenant_id": tenant_id, "set_id": set_id})
    row = await cursor.fetchone()
    return row is not None and bool(row["has_files"])


async def release_staged(connection: Connection, tenant_id: str, set_id: str, age_seconds: int) -> bool:
    """STAGED for longer than this -> RELEASED; whether it was."""
    arguments = {"tenant_id": tenant_id, "set_id": set_id, "age_seconds": age_seconds}
    return await (await connection.execute(_SQL["release_staged"], arguments)).fetchone() is not None


async def condemn_blobs_of_set(connection: Connection, tenant_id: str, set_id: str) -> set[str]:
    """Marks for deletion what this set refers to and no other set that is not released; where that is."""
    cursor = await connection.execute(_SQL["condemn_blobs_of_set"], {"tenant_id": tenant_id, "set_id": set_id})
    return {row["object_key"] for row in await cursor.fetchall()}


async def lock_condemned_blobs_of_set(connection: Connection, tenant_id: str, set_id: str) -> list[CondemnedBlob]:
    """Blobs of the set that are marked for deletion still. Whoever wants to store one of them waits until the transaction ends."""
    cursor = await connection.execute(_SQL["lock_condemned_blobs_of_set"], {"tenant_id": tenant_id, "set_id": set_id})
    return [CondemnedBlob(row["sha256"], row["object_key"]) for row in await cursor.fetchall()]


async def forget_blobs(connection: Connection, tenant_id: str, hashes: Collection[str]) -> None:
    """Deletes the rows of blobs whose objects are gone."""
    await connection.execute(_SQL["forget_blobs"], {"tenant_id": tenant_id, "hashes": list(hashes)})


async def forget_files(connection: Connection, tenant_id: str, set_id: str) -> None:
    """Deletes the references of a released set; the set stays as a tombstone."""
    await connection.execute(_SQL["forget_files"], {"tenant_id": tenant_id, "set_id": set_id})
