"""Attachment sets: their files, their states and the rules of each state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain.items import FileRef, InlineItem, StoredFile, ValidFile
from spawnmesh_attachment_blob.domain.uploads import UploadRef

BLOB_NAME = "blob"
"""Name of the only file in a set that holds a payload of BlobService. Such sets have ids with the
prefix `blb_`, and no RPC of AttachmentBlobService returns them."""


class SetState(StrEnum):
    """STAGED -> ATTACHED -> RELEASED, or STAGED -> RELEASED. RELEASED is terminal."""

    STAGED = "STAGED"
    ATTACHED = "ATTACHED"
    RELEASED = "RELEASED"


@dataclass(frozen=True, slots=True)
class SetRequest:
    """A set that a caller wants to stage.

    `uploader_session_id` is set if the set was requested by a run. A run may name only the uploads
    of its own session, and files of sets that it may see. `run_id` and `reader_session_ids` are
    those of an output set.
    """

    set_id: str
    session_id: str
    items: Sequence[InlineItem]
    uploads: Sequence[UploadRef] = ()
    references: Sequence[FileRef] = ()
    uploader_session_id: str = ""
    run_id: str = ""
    reader_session_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A payload that a caller wants to store."""

    blob_id: str
    session_id: str
    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class SetToStage:
    """A set that passed validation.

    `data_by_hash` has no entry for files that were uploaded before, and for those of other sets,
    which have the `referenced_hashes`. `key_suffix` is unique to this call. The tenant's storage
    quota holds if `is_limited`.
    """

    set_id: str
    session_id: str
    files: tuple[StoredFile, ...]
    data_by_hash: Mapping[str, bytes]
    key_suffix: str
    upload_ids: tuple[str, ...] = ()
    referenced_hashes: frozenset[str] = frozenset()
    run_id: str = ""
    reader_session_ids: tuple[str, ...] = ()
    is_limited: bool = True

    def data_by_key(self, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return the objects to put for these hashes, by object key."""
        return {object_key(sha256, self.key_suffix): self.data_by_hash[sha256] for sha256 in hashes}


@dataclass(frozen=True, slots=True)
class AttachmentSet:
    """The files of one session's set. A released set has no files left.

    An output set has the `run_id` of the run that published it. Runs of the sessions with the
    `reader_session_ids` may see it, too.
    """

    set_id: str
    session_id: str
    state: SetState
    files: tuple[StoredFile, ...]
    create_time: datetime
    run_id: str = ""
    reader_session_ids: tuple[str, ...] = ()


def object_key(sha256: str, suffix: str) -> str:
    """Return the key for an object with this hash.

    Each put uses a new suffix. A delayed delete or put in S3 therefore cannot affect an object that
    another call stored.
    """
    return f"sha256/{sha256[:2]}/{sha256}.{suffix}"


def stored_files(files: Sequence[ValidFile]) -> tuple[StoredFile, ...]:
    """Return the manifest of files that passed validation."""
    return tuple(StoredFile(file.name, len(file.data), file.sha256, file.mime_type) for file in files)


def wrong_state(set_id: str, state: SetState) -> MeshError:
    """Build the ATTACHMENT_SET_STATE error for a released set."""
    return MeshError(
        Reason.ATTACHMENT_SET_STATE,
        f"attachment set {set_id} is {state}",
        facts={"set_id": set_id, "state": state},
    )


def require_same_set(found: AttachmentSet, requested: SetToStage) -> AttachmentSet:
    """Return the existing set if the request repeats the call that staged it.

    Raises ATTACHMENT_SET_STATE for a released set and ALREADY_EXISTS for another request.
    """
    if found.state is SetState.RELEASED:
        raise wrong_state(found.set_id, found.state)
    if _content(found) != _content(requested):
        raise MeshError(
            Reason.ALREADY_EXISTS,
            f"attachment set {found.set_id} exists with other files, or for another session, run or readers;"
            " choose another id",
            facts={"set_id": found.set_id},
        )
    return found


def _content(one: AttachmentSet | SetToStage) -> tuple[object, ...]:
    return one.session_id, one.run_id, one.reader_session_ids, one.files


def require_set(
    found: AttachmentSet | None, set_id: str, reader_session_id: str | None = None
) -> AttachmentSet:
    """Return the set if this reader may see it.

    Raises NOT_FOUND for a missing set and for a tombstone. If a `reader_session_id` is given, also
    for a set that neither belongs to this session nor names it as a reader.
    """
    is_tombstone = found is not None and not found.session_id
    if found is None or is_tombstone:
        raise not_found("attachment set", set_id)
    if reader_session_id not in (None, found.session_id, *found.reader_session_ids):
        raise not_found("attachment set", set_id)
    return found


def require_file(found: AttachmentSet, name: str) -> StoredFile:
    """Return the file with this name.

    Raises ATTACHMENT_SET_STATE for a released set and NOT_FOUND for an unknown name.
    """
    if found.state is SetState.RELEASED:
        raise wrong_state(found.set_id, found.state)
    for file in found.files:
        if file.name == name:
            return file
    raise not_found("file of that name in attachment set", found.set_id)
