"""The reusable buffer for one part of an upload."""

from spawnmesh_attachment_blob.domain.part_buffer import PartBuffer


def test_buffer_takes_what_fits_and_returns_the_rest() -> None:
    buffer = PartBuffer(4)
    assert bytes(buffer.take(memoryview(b"abc"))) == b""
    assert (bytes(buffer.view), buffer.is_full) == (b"abc", False)
    assert bytes(buffer.take(memoryview(b"def"))) == b"ef"
    assert (bytes(buffer.view), buffer.is_full) == (b"abcd", True)
    assert bytes(buffer.take(memoryview(b"ef"))) == b"ef"
    assert bytes(buffer.view) == b"abcd"


def test_cleared_buffer_is_filled_from_its_beginning() -> None:
    buffer = PartBuffer(4)
    buffer.take(memoryview(b"abcd"))
    buffer.clear()
    assert (bytes(buffer.view), buffer.is_full) == (b"", False)
    buffer.take(memoryview(b"x"))
    assert bytes(buffer.view) == b"x"
