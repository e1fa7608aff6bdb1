"""Byte ranges of a file."""

from dataclasses import dataclass

from spawnmesh_core.errors import invalid


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of bytes.

    In a request a `length` of 0 means "to the end". In a result of `within_file` it is exact.
    """

    offset: int = 0
    length: int = 0

    def covers(self, size_bytes: int) -> bool:
        """Return whether an exact range is the complete file."""
        return self.offset == 0 and self.length == size_bytes


def within_file(requested: ByteRange, size_bytes: int) -> ByteRange:
    """Clip the range to the file.

    Raises INVALID_REQUEST if the range begins behind the end of the file.
    """
    if requested.offset > size_bytes:
        raise invalid("offset", f"is behind the end of the file, which has {size_bytes} bytes")
    rest = size_bytes - requested.offset
    return ByteRange(requested.offset, min(requested.length, rest) if requested.length else rest)
