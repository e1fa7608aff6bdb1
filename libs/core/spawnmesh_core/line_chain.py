"""A hash of a file's beginning that can be gone on with: it is chained over lines, and so is the same however the bytes come in pieces."""

import hashlib

NO_LINES = bytes(32)
"""The chain of nothing."""


class LineChain:
    """For each line, its end (`\\n`) included: SHA-256 of the chain of the lines before, and then of the line.

    Begins behind lines whose chain is known. Keeps no bytes, however long a line is.
    """

    def __init__(self, value: bytes = NO_LINES) -> None:
        self._value = value
        self._line = hashlib.sha256(value)
        self._is_within_line = False

    def update(self, data: bytes) -> None:
        """The next bytes; they may begin and end within lines."""
        start = 0
        while end := data.find(b"\n", start) + 1:
            self._line.update(memoryview(data)[start:end])
            self._value = self._line.digest()
            self._line = hashlib.sha256(self._value)
            self._is_within_line = False
            start = end
        if start < len(data):
            self._line.update(memoryview(data)[start:])
            self._is_within_line = True

    @property
    def value(self) -> bytes:
        """32 bytes, as if the file ended here: what there is of a line counts as one."""
        return self._line.digest() if self._is_within_line else self._value
