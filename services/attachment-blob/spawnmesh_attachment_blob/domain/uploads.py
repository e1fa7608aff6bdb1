"""Uploads in chunks: the announced file, the progress, the quota and the order of the chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

import google_crc32c
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.names import name_problem
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused

PART_BYTES = 5 * 1024 * 1024
"""Size of each part but the last one. S3 requires at least 5 MiB. All streams of an upload use the
same size, so that a part has the same bytes whichever stream sends it."""
MAX_UPLOAD_BYTES = 10_000 * PART_BYTES
"""S3 accepts at most 10,000 parts."""
_QUOTA_RETRY_SECONDS = 60.0  # Other uploads of the tenant may have finished by then.


class UploadState(StrEnum):
    """OPEN -> COMPLETE -> deleted, or OPEN -> ABORTING -> deleted."""

    OPEN = "OPEN"
    COMPLETE = "COMPLETE"
    ABORTING = "ABORTING"
    """The upload is being removed. Callers get NOT_FOUND for it."""


@dataclass(frozen=True, slots=True)
class UploadKey:
    """Identity of an upload.

    Upload ids are unique for each owner. The owner is the session whose runs send the upload, or,
    with an empty `session_id`, all clients of the tenant.
    """

    session_id: str
    upload_id: str

    @property
    def row_id(self) -> str:
        """The primary key of the upload's row within the tenant."""
        return f"{self.upload_id}.{self.session_id}"


@dataclass(frozen=True, slots=True)
class UploadSpec:
    """A file as the sender announced it."""

    upload_id: str
    name: str
    size_bytes: int
    sha256: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload and its progress. `session_id` is empty for uploads of clients.

    Each stream that writes to the upload increments `generation`, which is its fencing token.
    """

    spec: UploadSpec
    session_id: str
    state: UploadState
    generation: int
    object_key: str
    multipart_id: str
    part_bytes: int
    create_time: datetime
    expire_time: datetime

    @property
    def key(self) -> UploadKey:
        return UploadKey(self.session_id, self.spec.upload_id)

    @property
    def durable_bytes(self) -> int:
        """The offset at which a new stream resumes."""
        return self.spec.size_bytes if self.state is UploadState.COMPLETE else self.part_bytes


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a multipart upload that is durable in S3."""

    number: int
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class UploadTotals:
    """A number of uploads and the sum of their sizes."""

    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UploadUsage:
    """Uploads of a tenant, or the quota for them.

    `opened` counts uploads that are not COMPLETE, by their announced sizes. `finished` counts
    COMPLETE uploads; identical bytes count once.
    """

    opened: UploadTotals
    finished: UploadTotals
    first_expire_time: datetime | None = None
    """When the first finished upload expires."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as the sender sent it."""

    offset: int
    data: bytes
    crc32c: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The sender says that the file is complete."""


UploadMessage = UploadSpec | Chunk | Finish


@dataclass(frozen=True, slots=True)
class UploadRef:
    """An upload that a set names, and the file's name in the set; empty for the upload's name."""

    upload_id: str
    name: str


@dataclass(frozen=True, slots=True)
class NamedUpload:
    """The state and the file of an upload that a set names."""

    state: UploadState
    file: StoredFile


def require_allowed(spec: UploadSpec, limits: AttachmentLimits) -> None:
    """Raise AttachmentRefused for a file that no set of this tenant could hold."""
    if not limits.enabled:
        raise AttachmentRefused(AttachmentReason.DISABLED, {})
    problem = name_problem(spec.name)
    if problem is not None:
        raise AttachmentRefused(AttachmentReason.INVALID_NAME, {"rule": problem.value})
    if spec.size_bytes > min(limits.max_file_bytes, MAX_UPLOAD_BYTES):
        facts = {"limit_bytes": min(limits.max_file_bytes, MAX_UPLOAD_BYTES)}
        raise AttachmentRefused(AttachmentReason.FILE_BYTES_EXCEEDED, facts)
    if spec.size_bytes > limits.max_total_bytes:
        raise AttachmentRefused(
            AttachmentReason.TOTAL_BYTES_EXCEEDED, {"limit_bytes": limits.max_total_bytes}
        )


def require_quota(
    spec: UploadSpec, usage: UploadUsage, quota: UploadUsage, *, is_stored: bool, now: datetime
) -> None:
    """Raise BUDGET_EXCEEDED if this upload would exceed the tenant's quota.

    If `is_stored`, the tenant has the bytes already: the upload adds no bytes and finishes at once.
    """
    size_bytes = 0 if is_stored else spec.size_bytes
    if not is_stored:
        _require_quota("open", size_bytes, usage.opened, quota.opened, _QUOTA_RETRY_SECONDS)
    until_expiry = _QUOTA_RETRY_SECONDS
    if usage.first_expire_time is not None:
        until_expiry = max(until_expiry, (usage.first_expire_time - now).total_seconds())
    _require_quota("finished", size_bytes, usage.finished, quota.finished, until_expiry)


_QUOTA_ADVICE = {
    "open": "finish some of them, or wait until abandoned ones expire",
    "finished": "wait until some of them expire, used or not, or have the limit raised",
}


def _require_quota(
    kind: str, size_bytes: int, usage: UploadTotals, quota: UploadTotals, retry_after_seconds: float
) -> None:
    facts: dict[str, str | int]
    if usage.count + 1 > quota.count:
        facts = {"budget": f"{kind}_uploads", "limit": quota.count, kind: usage.count}
        text = f"the tenant has {usage.count} {kind} uploads, and {quota.count} are allowed"
    elif size_bytes and usage.size_bytes + size_bytes > quota.size_bytes:
        facts = {
            "budget": f"{kind}_upload_bytes",
            "limit_bytes": quota.size_bytes,
            f"{kind}_bytes": usage.size_bytes,
            "size_bytes": size_bytes,
        }
        text = (
            f"the tenant's {kind} uploads have {usage.size_bytes} bytes, this upload has {size_bytes},"
            f" and {quota.size_bytes} are allowed"
        )
    else:
        return
    raise MeshError(
        Reason.BUDGET_EXCEEDED,
        f"{text}; {_QUOTA_ADVICE[kind]}",
        retry_after_seconds=retry_after_seconds,
        facts=facts,
    )


def require_upload(found: Upload | None, key: UploadKey) -> Upload:
    """Return the upload. Raises NOT_FOUND for a missing upload and for one that is ABORTING."""
    if found is None or found.state is UploadState.ABORTING:
        raise not_found("upload", key.upload_id)
    return found


def require_same_spec(found: Upload, spec: UploadSpec) -> None:
    """Raise ALREADY_EXISTS if the upload was announced with another spec."""
    if found.spec != spec:
        raise MeshError(
            Reason.ALREADY_EXISTS,
            f"upload {spec.upload_id} was begun for another file; choose another id",
            facts={"upload_id": spec.upload_id},
        )


def require_next(spec: UploadSpec, at_bytes: int, chunk: Chunk) -> None:
    """Check that the chunk is the next one.

    Raises UPLOAD_OFFSET_DIFFERS if it does not begin at `at_bytes`, UPLOAD_SIZE_EXCEEDED if it
    exceeds the announced size, and UPLOAD_CRC_DIFFERS if its checksum is wrong.
    """
    facts: dict[str, str | int] = {"upload_id": spec.upload_id, "offset": chunk.offset}
    if chunk.offset != at_bytes:
        raise MeshError(
            Reason.UPLOAD_OFFSET_DIFFERS,
            f"the chunk begins at {chunk.offset}; the upload continues at {at_bytes}",
            facts={**facts, "expected_offset": at_bytes},
        )
    if chunk.offset + len(chunk.data) > spec.size_bytes:
        raise MeshError(
            Reason.UPLOAD_SIZE_EXCEEDED,
            f"the chunk ends behind the announced {spec.size_bytes} bytes",
            facts={**facts, "size_bytes": spec.size_bytes},
        )
    if google_crc32c.value(chunk.data) != chunk.crc32c:
        raise MeshError(
            Reason.UPLOAD_CRC_DIFFERS,
            "the chunk's bytes do not match its checksum; send them again from the durable offset",
            facts=facts,
        )


def incomplete(upload_id: str, durable_bytes: int, size_bytes: int) -> MeshError:
    """Build the UPLOAD_INCOMPLETE error for an upload that lacks bytes."""
    return MeshError(
        Reason.UPLOAD_INCOMPLETE,
        f"upload {upload_id} is not complete: resume it at {durable_bytes} of {size_bytes} bytes,"
        " then finish it",
        facts={"upload_id": upload_id, "durable_bytes": durable_bytes, "size_bytes": size_bytes},
    )


def hash_differs(upload_id: str) -> MeshError:
    """Build the UPLOAD_HASH_DIFFERS error for bytes that do not have the announced hash."""
    return MeshError(
        Reason.UPLOAD_HASH_DIFFERS,
        f"the bytes of upload {upload_id} do not have the announced hash; the upload was deleted,"
        " begin again",
        facts={"upload_id": upload_id},
    )


def taken_over(upload_id: str) -> MeshError:
    """Build the UPLOAD_TAKEN_OVER error for a stream that lost its upload to a newer stream."""
    return MeshError(
        Reason.UPLOAD_TAKEN_OVER,
        f"another stream continues upload {upload_id}, or it was removed",
        facts={"upload_id": upload_id},
    )


def files_of_uploads(refs: Sequence[UploadRef], found: Mapping[str, NamedUpload]) -> tuple[StoredFile, ...]:
    """Return the files of the uploads under their names in the set.

    `found` holds the uploads that the caller may name. Raises NOT_FOUND and UPLOAD_INCOMPLETE.
    """
    files = []
    for ref in refs:
        upload = found.get(ref.upload_id)
        if upload is None or upload.state is UploadState.ABORTING:
            raise not_found("upload", ref.upload_id)
        if upload.state is not UploadState.COMPLETE:
            raise MeshError(
                Reason.UPLOAD_INCOMPLETE,
                f"upload {ref.upload_id} is not complete; finish it first",
                facts={"upload_id": ref.upload_id},
            )
        files.append(replace(upload.file, name=ref.name or upload.file.name))
    return tuple(files)
