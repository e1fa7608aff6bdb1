"""The files of a set, and the manifest that is stored beside them."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spawnmesh_materialize.errors import MaterializeError, MaterializeReason

MANIFEST_NAME = ".manifest.json"
_MAX_NAME_BYTES = 255
_SET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a set. `sha256` is lower-case hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file to write. `chunks` are read at most once, and only if the file has to be written."""

    name: str
    size_bytes: int
    sha256: str
    chunks: Iterable[bytes]

    @property
    def record(self) -> FileRecord:
        return FileRecord(self.name, self.size_bytes, self.sha256)


def check_set_id(set_id: str) -> None:
    """Raise MaterializeError unless `set_id` is 1-128 of `[A-Za-z0-9_-]`.

    The first character has to be a letter or a digit.
    """
    if not _SET_ID.fullmatch(set_id):
        raise MaterializeError(MaterializeReason.INVALID_SET_ID)


def check_names(files: Sequence[FileSource]) -> None:
    """Raise MaterializeError INVALID_NAME with the `index` of an invalid or duplicate name.

    This only keeps each file in its directory. Portability is checked before, by attachment-blob.
    """
    keys = {_key(MANIFEST_NAME)}
    for index, file in enumerate(files):
        key = _key(file.name)
        if key in keys or not _stays_in_directory(file.name):
            raise MaterializeError(MaterializeReason.INVALID_NAME, index=index)
        keys.add(key)


def manifest_bytes(set_id: str, records: Iterable[FileRecord]) -> bytes:
    """Return the manifest to store: the same bytes for the same files in any order."""
    files = [
        {"name": record.name, "bytes": record.size_bytes, "sha256": record.sha256}
        for record in sorted(records, key=lambda record: record.name)
    ]
    return (json.dumps({"set": set_id, "files": files}, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def _key(name: str) -> str:
    """Return the key by which the attachment-blob service compares names.

    A stricter key would refuse sets that the service accepted.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _stays_in_directory(name: str) -> bool:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode("utf-8")) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
