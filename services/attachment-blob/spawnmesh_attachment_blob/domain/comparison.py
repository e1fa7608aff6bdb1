"""Compare the objects of a bucket with the rows of its tenant, one page at a time."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object as a listing of the bucket shows it."""

    key: str
    size_bytes: int
    modified_time: datetime


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """A blob as its row describes it.

    The row of a stored blob promises that its object exists. A lost blob was stored, and an
    earlier collection found its object missing or damaged.
    """

    key: str
    sha256: str
    size_bytes: int
    is_stored: bool
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between objects and rows.

    Check each missing and each damaged blob again before you report it: a call may have stored or
    removed it since the listing.
    """

    orphan_keys: tuple[str, ...]
    missing: tuple[BlobEntry, ...]
    damaged: tuple[BlobEntry, ...]
    found_again: tuple[BlobEntry, ...]
    """Lost blobs whose object exists again."""


def compare(
    objects: Sequence[ObjectEntry],
    blobs: Sequence[BlobEntry],
    expected_keys: Collection[str],
    orphaned_before: datetime,
) -> Differences:
    """Compare objects with the rows of the same key range. Read the rows after the objects.

    An object is an orphan if no row and none of `expected_keys` names its key and it was last
    written before `orphaned_before`. Objects whose keys this service does not create are ignored.
    """
    known = {blob.key for blob in blobs}
    size_by_key = {entry.key: entry.size_bytes for entry in objects}
    promised = [blob for blob in blobs if blob.is_stored or blob.is_lost]
    return Differences(
        tuple(
            entry.key
            for entry in objects
            if entry.key not in known
            and entry.key not in expected_keys
            and entry.modified_time < orphaned_before
            and _HASH.fullmatch(hash_of_key(entry.key))
        ),
        tuple(blob for blob in promised if blob.key not in size_by_key),
        tuple(blob for blob in promised if size_by_key.get(blob.key, blob.size_bytes) != blob.size_bytes),
        tuple(blob for blob in promised if blob.is_lost and size_by_key.get(blob.key) == blob.size_bytes),
    )


def hash_of_key(key: str) -> str:
    """Return the hash that an object key of this service contains."""
    return key.rpartition("/")[2].partition(".")[0]
