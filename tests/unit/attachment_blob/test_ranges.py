"""Byte ranges of a file."""

import pytest
from spawnmesh_attachment_blob.domain.ranges import ByteRange, within_file
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@pytest.mark.parametrize(
    ("requested", "clipped"),
    [
        (ByteRange(), ByteRange(0, 10)),
        (ByteRange(3), ByteRange(3, 7)),
        (ByteRange(3, 4), ByteRange(3, 4)),
        (ByteRange(3, 7), ByteRange(3, 7)),
        (ByteRange(3, 8), ByteRange(3, 7)),
        (ByteRange(10, 1), ByteRange(10, 0)),
    ],
)
def test_range_is_clipped_to_the_file(requested: ByteRange, clipped: ByteRange) -> None:
    assert within_file(requested, 10) == clipped


def test_range_behind_the_end_is_refused() -> None:
    with pytest.raises(MeshError) as caught:
        within_file(ByteRange(11), 10)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert [violation.field for violation in caught.value.violations] == ["offset"]


@pytest.mark.parametrize(
    ("exact", "covers"),
    [(ByteRange(0, 10), True), (ByteRange(0, 9), False), (ByteRange(1, 9), False), (ByteRange(1, 10), False)],
)
def test_only_the_exact_range_from_the_beginning_covers_the_file(exact: ByteRange, covers: bool) -> None:
    assert exact.covers(10) is covers
