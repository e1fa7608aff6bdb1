"""What a set holds: as a list handed over, and as the file that lies beside its contents."""

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
    """One file of a set; `sha256` is lower-case hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file to be written: its record, and its contents, which are read once and only if they are needed."""

    name: str
    size_bytes: int
    sha256: str
    chunks: Iterable[bytes]

    @property
    def record(self) -> FileRecord:
        return FileRecord(self.name, self.size_bytes, self.sha256)


def check_set_id(set_id: str) -> None:
    """Raises MaterializeError unless `set_id` is 1-128 of `[A-Za-z0-9_-]`, not led by a mark."""
    if not _SET_ID.fullmatch(set_id):
        raise MaterializeError(MaterializeReason.INVALID_SET_ID)


def check_names(files: Sequence[FileSource]) -> None:
    """Raises MaterializeError INVALID_NAME with the `index` of a file whose name is unfit, or taken before.

    Names have been judged for portability long before; this is only what keeps a file in its directory.
    """
    taken = {_key(MANIFEST_NAME)}
    for index, file in enumerate(files):
        key = _key(file.name)
        if key in taken or not _stays_in_directory(file.name):
            raise MaterializeError(MaterializeReason.INVALID_NAME, index=index)
        taken.add(key)


def manifest_bytes(set_id: str, records: Iterable[FileRecord]) -> bytes:
    """The manifest as stored: the same bytes for the same files, whatever order they came in."""
    files = [
        {"name": record.name, "bytes": record.size_bytes, "sha256": record.sha256}
        for record in sorted(records, key=lambda record: record.name)
    ]
    return (json.dumps({"set": set_id, "files": files}, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def _key(name: str) -> str:
    """What the attachment-blob service calls two names the same by: anything stricter would refuse a set that it accepted."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _stays_in_directory(name: str) -> bool:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode("utf-8")) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
