"""Room for one part, made once and used again: gibibytes pass, and the allocator has nothing to keep of them."""


class PartBuffer:
    """Takes bytes until it is full."""

    def __init__(self, size_bytes: int) -> None:
        self._room = bytearray(size_bytes)
        self._filled = 0

    def take(self, data: memoryview) -> memoryview:
        """Copies what fits; what is left over."""
        count = min(len(data), len(self._room) - self._filled)
        self._room[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return data[count:]

    def clear(self) -> None:
        """It is empty again. Views given before show what comes next."""
        self._filled = 0

    @property
    def view(self) -> memoryview:
        """What was taken, without a copy."""
        return memoryview(self._room)[: self._filled]

    @property
    def is_full(self) -> bool:
        return self._filled == len(self._room)
