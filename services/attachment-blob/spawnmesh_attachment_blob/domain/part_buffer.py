"""A reusable buffer for one part of an upload."""


class PartBuffer:
    """Collects bytes until it is full.

    The buffer is allocated once and reused, so that large uploads do not fragment the heap.
    """

    def __init__(self, size_bytes: int) -> None:
        self._buffer = bytearray(size_bytes)
        self._filled = 0

    def take(self, data: memoryview) -> memoryview:
        """Copy the bytes that fit and return the rest."""
        count = min(len(data), len(self._buffer) - self._filled)
        self._buffer[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return data[count:]

    def clear(self) -> None:
        """Empty the buffer. Earlier views show the bytes that are written next."""
        self._filled = 0

    @property
    def view(self) -> memoryview:
        """The collected bytes, without a copy."""
        return memoryview(self._buffer)[: self._filled]

    @property
    def is_full(self) -> bool:
        return self._filled == len(self._buffer)
