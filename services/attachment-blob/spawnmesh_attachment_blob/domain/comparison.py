"""A bucket's objects against the rows that should know them, one page at a time."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object as a listing shows it."""

    key: str
    size_bytes: int
    modified_time: datetime


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """A blob as its row says. Only a stored one promises that its object is there; a lost one did, and waits for its bytes."""

    key: str
    sha256: str
    size_bytes: int
    is_stored: bool
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Differences:
    """What does not fit together, and what was lost and is there again. What is missing or damaged has to be looked at once more: it may have
    been stored or removed since the listing.
    """

    orphan_keys: tuple[str, ...]
    missing: tuple[BlobEntry, ...]
    damaged: tuple[BlobEntry, ...]
    found_again: tuple[BlobEntry, ...]


def compare(
    objects: Sequence[ObjectEntry],
    blobs: Sequence[BlobEntry],
    expected_keys: Collection[str],
    orphaned_before: datetime,
) -> Differences:
    """Compares objects with the rows of the same range of keys, read after them.

    An object is an orphan when neither a row nor `expected_keys` know it and it was last written before `orphaned_before`.
    One whose key is not of our making is left alone.
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
    """The hash that a key of ours names."""
    return key.rpartition("/")[2].partition(".")[0]
