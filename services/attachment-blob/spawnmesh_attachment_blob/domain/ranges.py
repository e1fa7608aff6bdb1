"""Ranges of a file's bytes."""

from dataclasses import dataclass

from spawnmesh_core.errors import invalid


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes from `offset` on. As it is asked for, a `length` of 0 is to the end; as `within_file` gives it, it is exact."""

    offset: int = 0
    length: int = 0

    def covers(self, size_bytes: int) -> bool:
        """Whether an exact range is the whole file."""
        return self.offset == 0 and self.length == size_bytes


def within_file(wanted: ByteRange, size_bytes: int) -> ByteRange:
    """The part of the range that the file has. Raises INVALID_REQUEST for one that begins behind its end."""
    if wanted.offset > size_bytes:
        raise invalid("offset", f"is behind the end of the file, which has {size_bytes} bytes")
    rest = size_bytes - wanted.offset
    return ByteRange(wanted.offset, min(wanted.length, rest) if wanted.length else rest)
