"""References of a new set to files of other sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spawnmesh_core.errors import MeshError

from spawnmesh_attachment_blob.domain.errors import stored_hash_differs
from spawnmesh_attachment_blob.domain.items import FileRef, StoredFile
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, require_file, require_set


@dataclass(frozen=True, slots=True)
class ReferencedSets:
    """Sets by id, each with those of its files that references name.

    `lost_hashes` are hashes of these files whose bytes are not stored.
    """

    by_id: Mapping[str, AttachmentSet]
    lost_hashes: frozenset[str] = frozenset()


def files_of_references(
    refs: Sequence[FileRef], found: ReferencedSets, reader_session_id: str | None, first_index: int = 0
) -> tuple[StoredFile, ...]:
    """Return the files under their names in the new set.

    If a `reader_session_id` is given, only sets count that its runs may see. Raises NOT_FOUND for a
    set or a file that is not found, ATTACHMENT_SET_STATE for a released set, and
    STORED_HASH_DIFFERS for a file whose bytes are lost; with the `index` of the file in the new
    set, in which the first reference has the `first_index`.
    """
    files = []
    for index, ref in enumerate(refs, first_index):
        try:
            file = _file_of(ref, found, reader_session_id)
        except MeshError as error:
            error.facts["index"] = str(index)
            raise
        files.append(replace(file, name=ref.new_name or file.name))
    return tuple(files)


def _file_of(ref: FileRef, found: ReferencedSets, reader_session_id: str | None) -> StoredFile:
    source = require_set(found.by_id.get(ref.set_id), ref.set_id, reader_session_id)
    file = require_file(source, ref.name)
    if file.sha256 in found.lost_hashes:
        raise stored_hash_differs(file.sha256)
    return file
