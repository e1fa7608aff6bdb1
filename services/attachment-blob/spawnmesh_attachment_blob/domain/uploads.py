"""Files that come in pieces: what was announced, how far it is, and which piece may come next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

import google_crc32c
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.names import name_problem
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused
from spawnmesh_attachment_blob.domain.sets import StoredFile

PART_BYTES = 5 * 1024 * 1024
"""What S3 takes for the parts of an object, except the last: at least this much. The same for every stream, so that a part is the same whoever
sends it."""
MAX_UPLOAD_BYTES = 10_000 * PART_BYTES
"""S3 takes ten thousand parts."""
_ROOM_AGAIN_SECONDS = 60.0  # Others may have finished by then.


class UploadState(StrEnum):
    """OPEN -> COMPLETE, OPEN -> ABORTING; then forgotten."""

    OPEN = "OPEN"
    COMPLETE = "COMPLETE"
    ABORTING = "ABORTING"
    """Being removed. Nobody but who removes it knows it."""


@dataclass(frozen=True, slots=True)
class UploadKey:
    """Which upload. Ids are their owner's: the session whose runs send it, or, with an empty `session_id`, the tenant's clients."""

    session_id: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class UploadSpec:
    """A file as it was announced."""

    upload_id: str
    name: str
    size_bytes: int
    sha256: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload as it is. `session_id` is that of the runs that send it, empty for clients; `row_id` is its row's own key."""

    spec: UploadSpec
    session_id: str
    row_id: str
    state: UploadState
    generation: int
    object_key: str
    multipart_id: str
    part_bytes: int
    create_time: datetime
    expire_time: datetime

    @property
    def key(self) -> UploadKey:
        """Which it is."""
        return UploadKey(self.session_id, self.spec.upload_id)

    @property
    def durable_bytes(self) -> int:
        """Where a new stream goes on."""
        return self.spec.size_bytes if self.state is UploadState.COMPLETE else self.part_bytes


@dataclass(frozen=True, slots=True)
class UploadSums:
    """How many uploads, and of how many bytes together."""

    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TenantUploads:
    """A tenant's uploads: those that are not COMPLETE, by what was announced, and those that are, the same bytes once."""

    opened: UploadSums
    finished: UploadSums
    first_expire_time: datetime | None = None
    """When the first of those that are finished goes."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece as it came."""

    offset: int
    data: bytes
    crc32c: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Says that the file is whole."""


@dataclass(frozen=True, slots=True)
class UploadRef:
    """An upload that a set names, and the name it shall have there; empty for the upload's own."""

    upload_id: str
    name: str


@dataclass(frozen=True, slots=True)
class NamedUpload:
    """What is known of an upload that a set names."""

    state: UploadState
    file: StoredFile


def require_allowed(spec: UploadSpec, limits: AttachmentLimits) -> None:
    """Raises AttachmentRefused for a file that no set of this tenant could hold."""
    if not limits.enabled:
        raise AttachmentRefused(AttachmentReason.DISABLED, {})
    problem = name_problem(spec.name)
    if problem is not None:
        raise AttachmentRefused(AttachmentReason.INVALID_NAME, {"rule": problem.value})
    if spec.size_bytes > min(limits.max_file_bytes, MAX_UPLOAD_BYTES):
        facts = {"limit_bytes": min(limits.max_file_bytes, MAX_UPLOAD_BYTES)}
        raise AttachmentRefused(AttachmentReason.FILE_BYTES_EXCEEDED, facts)
    if spec.size_bytes > limits.max_total_bytes:
        raise AttachmentRefused(AttachmentReason.TOTAL_BYTES_EXCEEDED, {"limit_bytes": limits.max_total_bytes})


def require_room(
    spec: UploadSpec, found: TenantUploads, may_be: TenantUploads, *, is_stored: bool, now: datetime
) -> None:
    """Raises BUDGET_EXCEEDED where, with this one, the tenant would have more than it may. With `is_stored` it brings no
    bytes, and is finished at once.
    """
    size_bytes = 0 if is_stored else spec.size_bytes
    if not is_stored:
        _require_room("open", size_bytes, found.opened, may_be.opened, _ROOM_AGAIN_SECONDS)
    until_expiry = _ROOM_AGAIN_SECONDS
    if found.first_expire_time is not None:
        until_expiry = max(until_expiry, (found.first_expire_time - now).total_seconds())
    _require_room("finished", size_bytes, found.finished, may_be.finished, until_expiry)


_WAYS_TO_ROOM = {
    "open": "finish some of them, or wait until those expire that nobody goes on with",
    "finished": "they go some time after they were finished, used or not; wait for that, or have the limit raised",
}


def _require_room(
    kind: str, size_bytes: int, found: UploadSums, may_be: UploadSums, retry_after_seconds: float
) -> None:
    facts: dict[str, str | int]
    if found.count + 1 > may_be.count:
        facts = {"budget": f"{kind}_uploads", "limit": may_be.count, kind: found.count}
        text = f"{found.count} uploads of the tenant are {kind}, and no more may be"
    elif size_bytes and found.size_bytes + size_bytes > may_be.size_bytes:
        facts = {
            "budget": f"{kind}_upload_bytes",
            "limit_bytes": may_be.size_bytes,
            f"{kind}_bytes": found.size_bytes,
            "size_bytes": size_bytes,
        }
        text = f"the tenant's {kind} uploads are of {found.size_bytes} bytes, and may be of {may_be.size_bytes} with this one"
    else:
        return
    raise MeshError(
        Reason.BUDGET_EXCEEDED, f"{text}; {_WAYS_TO_ROOM[kind]}", retry_after_seconds=retry_after_seconds, facts=facts
    )


def require_upload(found: Upload | None, key: UploadKey) -> Upload:
    """The upload that its owner asked for, where there is one. Raises NOT_FOUND."""
    if found is None or found.state is UploadState.ABORTING:
        raise not_found("upload", key.upload_id)
    return found


def require_same_spec(found: Upload, spec: UploadSpec) -> None:
    """Raises ALREADY_EXISTS where another file was announced under this id."""
    if found.spec != spec:
        raise MeshError(
            Reason.ALREADY_EXISTS,
            f"upload {spec.upload_id} was begun for another file; choose another id",
            facts={"upload_id": spec.upload_id},
        )


def require_next(spec: UploadSpec, at_bytes: int, chunk: Chunk) -> None:
    """Raises unless the chunk is whole, begins at `at_bytes` and ends within the announced size."""
    facts: dict[str, str | int] = {"upload_id": spec.upload_id, "offset": chunk.offset}
    if chunk.offset != at_bytes:
        raise MeshError(
            Reason.UPLOAD_OFFSET_DIFFERS,
            f"the chunk begins at {chunk.offset}; the upload goes on at {at_bytes}",
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
            "the chunk's bytes do not have its checksum; send them again from where the upload is durable",
            facts=facts,
        )


def incomplete(upload_id: str, durable_bytes: int, size_bytes: int) -> MeshError:
    """The refusal for an upload that is not whole."""
    return MeshError(
        Reason.UPLOAD_INCOMPLETE,
        f"upload {upload_id} is not complete: go on with it at {durable_bytes} of {size_bytes} bytes, then finish it",
        facts={"upload_id": upload_id, "durable_bytes": durable_bytes, "size_bytes": size_bytes},
    )


def hash_differs(upload_id: str) -> MeshError:
    """The refusal for bytes that are not the announced ones."""
    return MeshError(
        Reason.UPLOAD_HASH_DIFFERS,
        f"the bytes of upload {upload_id} do not have the announced hash; the upload is forgotten, begin again",
        facts={"upload_id": upload_id},
    )


def taken_over(upload_id: str) -> MeshError:
    """The refusal for a stream behind whose back another one went on, or whose upload is gone."""
    return MeshError(
        Reason.UPLOAD_TAKEN_OVER,
        f"another stream goes on with upload {upload_id}, or it was removed",
        facts={"upload_id": upload_id},
    )


def files_of_uploads(refs: Sequence[UploadRef], found: Mapping[str, NamedUpload]) -> tuple[StoredFile, ...]:
    """The files of the uploads, which are found for who may name them, as the set shall name them. Raises NOT_FOUND and UPLOAD_INCOMPLETE."""
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
