"""A resumable hash of the beginning of a file.

The hash is chained over lines, so it does not depend on how the bytes are split into chunks.
"""

import hashlib

NO_LINES = bytes(32)
"""The chain value of an empty file."""


class LineChain:
    """Hash of lines: for each line, SHA-256 of the chain of the lines before and then of the line.

    A line includes its end (`\\n`). Start with the value of a known chain to continue it. The
    object keeps no bytes, whatever the length of a line.
    """

    def __init__(self, value: bytes = NO_LINES) -> None:
        self._value = value
        self._line = hashlib.sha256(value)
        self._is_within_line = False

    def update(self, data: bytes) -> None:
        """Add the next bytes; they may begin and end within lines."""
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
        """The 32 bytes of the chain if the file ended here; an incomplete last line counts as a
        line.
        """
        return self._line.digest() if self._is_within_line else self._value
