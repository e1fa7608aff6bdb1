"""Differences between the objects of a bucket and the rows of its tenant."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_attachment_blob.domain.comparison import (
    BlobEntry,
    Differences,
    ObjectEntry,
    compare,
    hash_of_key,
)

CUTOFF = datetime(2026, 1, 2, tzinfo=UTC)
HASH = "a" * 64
KEY = f"sha256/aa/{HASH}.1"
OLD = ObjectEntry(KEY, 3, CUTOFF - timedelta(microseconds=1))
STORED = BlobEntry(KEY, HASH, 3, is_stored=True)
LOST = replace(STORED, is_stored=False, is_lost=True)
NONE = Differences((), (), (), ())


def test_hash_is_read_from_the_key() -> None:
    assert hash_of_key(KEY) == HASH


@pytest.mark.parametrize(
    ("entry", "blobs", "expected_keys"),
    [
        pytest.param(replace(OLD, modified_time=CUTOFF), [], (), id="written at the cutoff"),
        pytest.param(OLD, [STORED], (), id="with a row"),
        pytest.param(OLD, [replace(STORED, is_stored=False)], (), id="with the row of a call in progress"),
        pytest.param(OLD, [], (KEY,), id="expected"),
        pytest.param(replace(OLD, key="logs/other.txt"), [], (), id="with a key of another program"),
    ],
)
def test_object_is_no_orphan(
    entry: ObjectEntry, blobs: list[BlobEntry], expected_keys: tuple[str, ...]
) -> None:
    assert compare([entry], blobs, expected_keys, CUTOFF) == NONE


def test_old_object_without_a_row_is_an_orphan() -> None:
    assert compare([OLD], [], (), CUTOFF) == replace(NONE, orphan_keys=(KEY,))


@pytest.mark.parametrize(
    ("size_bytes", "blob", "differences"),
    [
        (None, STORED, replace(NONE, missing=(STORED,))),
        (None, LOST, replace(NONE, missing=(LOST,))),
        (None, replace(STORED, is_stored=False), NONE),
        (2, STORED, replace(NONE, damaged=(STORED,))),
        (2, LOST, replace(NONE, damaged=(LOST,))),
        (3, LOST, replace(NONE, found_again=(LOST,))),
        (3, STORED, NONE),
    ],
)
def test_promised_blob_is_compared_with_its_object(
    size_bytes: int | None, blob: BlobEntry, differences: Differences
) -> None:
    objects = [] if size_bytes is None else [replace(OLD, size_bytes=size_bytes)]
    assert compare(objects, [blob], (), CUTOFF) == differences
