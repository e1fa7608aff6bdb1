"""Attachment sets: what is in them and what may be done in which state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain.items import ValidFile

BLOB_NAME = "blob"
"""What the one file of a set is called that keeps a payload. Such sets have ids of another kind, and nobody is shown them."""


class SetState(StrEnum):
    """STAGED -> ATTACHED -> RELEASED; every state may go to RELEASED, which is terminal."""

    STAGED = "STAGED"
    ATTACHED = "ATTACHED"
    RELEASED = "RELEASED"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a set; its bytes are the object of its hash."""

    name: str
    size_bytes: int
    sha256: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class SetToStage:
    """A set that passed. Files that were uploaded have no bytes here. `key_suffix` is one that nobody used before."""

    set_id: str
    session_id: str
    files: tuple[StoredFile, ...]
    data_by_hash: Mapping[str, bytes]
    key_suffix: str
    upload_ids: tuple[str, ...] = ()

    def data_by_key(self, hashes: Iterable[str]) -> dict[str, bytes]:
        """The objects to put for these hashes."""
        return {put_key(sha256, self.key_suffix): self.data_by_hash[sha256] for sha256 in hashes}


@dataclass(frozen=True, slots=True)
class AttachmentSet:
    """The files handed to one session together. A released set has none left."""

    set_id: str
    session_id: str
    state: SetState
    files: tuple[StoredFile, ...]
    create_time: datetime


def object_key(sha256: str) -> str:
    """What the keys of all objects with this hash begin with; the whole key of some that older versions put."""
    return f"sha256/{sha256[:2]}/{sha256}"


def put_key(sha256: str, suffix: str) -> str:
    """Where bytes with this hash are put. With a suffix of its own each time, what reaches S3 late meets nobody else's object."""
    return f"{object_key(sha256)}.{suffix}"


def stored_files(files: Sequence[ValidFile]) -> tuple[StoredFile, ...]:
    """The manifest of files that passed."""
    return tuple(StoredFile(file.name, len(file.data), file.sha256, file.mime_type) for file in files)


def wrong_state(set_id: str, state: SetState) -> MeshError:
    """The refusal for a set that was released."""
    return MeshError(
        Reason.ATTACHMENT_SET_STATE,
        f"attachment set {set_id} is {state}",
        facts={"set_id": set_id, "state": state},
    )


def require_repeat(found: AttachmentSet, wanted: SetToStage) -> AttachmentSet:
    """The set that is there already. Raises unless `wanted` says again what was said when it was staged."""
    if found.state is SetState.RELEASED:
        raise wrong_state(found.set_id, found.state)
    if (found.session_id, found.files) != (wanted.session_id, wanted.files):
        raise MeshError(
            Reason.ALREADY_EXISTS,
            f"attachment set {found.set_id} exists with other files or for another session; choose another id",
            facts={"set_id": found.set_id},
        )
    return found


def require_visible(found: AttachmentSet | None, set_id: str, reader_session_id: str | None = None) -> AttachmentSet:
    """The set, where it exists for this reader; raises NOT_FOUND. A reader with a session sees that session's sets only."""
    is_tombstone = found is not None and not found.session_id
    if found is None or is_tombstone:
        raise not_found("attachment set", set_id)
    if reader_session_id is not None and reader_session_id != found.session_id:
        raise not_found("attachment set", set_id)
    return found


def require_readable(found: AttachmentSet, name: str) -> StoredFile:
    """The file of that name. Raises ATTACHMENT_SET_STATE for a released set, NOT_FOUND for a name it does not have."""
    if found.state is SetState.RELEASED:
        raise wrong_state(found.set_id, found.state)
    for file in found.files:
        if file.name == name:
            return file
    raise not_found("file of that name in attachment set", found.set_id)
