"""Parts of a file for one response of DescribeFile: cut within limits, and at character boundaries
of a text.
"""

from dataclasses import dataclass

KIB = 1024
DEFAULT_BYTES = 32 * KIB
MAX_BYTES = 500 * KIB
_MAX_CHARACTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bytes:
    """A range of bytes; a length of 0 means DEFAULT_BYTES."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Lines:
    """A range of lines, counted from 1; a count of 0 means as many as fit in DEFAULT_BYTES."""

    first_line: int
    line_count: int


@dataclass(frozen=True, slots=True)
class Content:
    """A part of a file.

    `truncated` is set if it is less than was asked for, though the file has more.
    """

    data: bytes
    offset: int
    truncated: bool

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


def window_of(asked: Bytes, *, size: int) -> Bytes:
    """Return the range to read for the wanted range: one character's length more on both sides."""
    offset = max(0, min(asked.offset, size) - _MAX_CHARACTER_BYTES + 1)
    end = min(size, asked.offset + _wanted(asked.length) + _MAX_CHARACTER_BYTES)
    return Bytes(offset, max(0, end - offset))


def cut_bytes(window: bytes, window_offset: int, asked: Bytes, *, size: int, is_text: bool) -> Content:
    """Return the wanted range, cut out of the window around it.

    In a text, the character around the start is included. The one around the end is not, unless
    nothing else would be left.
    """
    start = min(asked.offset, size) - window_offset
    end = min(len(window), start + _wanted(asked.length))
    if is_text:
        start = _boundary(window, start)
        end = _boundary(window, end)
        if end <= start < len(window):
            end = start + _character_length(window, start)
    asked_end = min(size, asked.offset + asked.length) if asked.length else size
    data = window[start:end]
    return Content(data, window_offset + start, truncated=window_offset + start + len(data) < asked_end)


class LineCutter:
    """Cut lines out of a text that arrives in pieces, and keep no more of it than one response
    takes.
    """

    def __init__(self, asked: Lines) -> None:
        self._to_skip = asked.first_line - 1
        self._line_count = asked.line_count
        self._limit = MAX_BYTES if asked.line_count else DEFAULT_BYTES
        self._offset = 0
        self._data = bytearray()

    def feed(self, piece: bytes) -> bool:
        """Take the next piece. Return True once no more is needed."""
        begin = 0
        while self._to_skip:
            found = piece.find(b"\n", begin)
            if found < 0:
                self._offset += len(piece)
                return False
            begin = found + 1
            self._to_skip -= 1
            if not self._to_skip:
                self._offset += begin
        self._data += piece[begin:]
        return len(self._data) > self._limit + _MAX_CHARACTER_BYTES or self._asked_end() >= 0

    def content(self, *, size: int) -> Content:
        """Return the lines.

        They are cut at the end of a line if there are too many, and between characters if the
        first line alone is too long.
        """
        data = bytes(self._data)
        asked_end = self._asked_end()
        if asked_end < 0:
            asked_end = len(data) if self._line_count else size - self._offset
        end = min(asked_end, len(data))
        if end > self._limit:
            end = data.rfind(b"\n", 0, self._limit) + 1 or _boundary(data, self._limit)
        return Content(data[:end], self._offset, truncated=end < asked_end)

    def _asked_end(self) -> int:
        """Return the position where the last wanted line ends, -1 if it has not arrived."""
        if not self._line_count:
            return -1
        end = -1
        for _ in range(self._line_count):
            end = self._data.find(b"\n", end + 1)
            if end < 0:
                return -1
        return end + 1


def _wanted(length: int) -> int:
    return min(length or DEFAULT_BYTES, MAX_BYTES)


def _boundary(data: bytes, place: int) -> int:
    """Return the position, or the start of the character around it."""
    while 0 < place < len(data) and data[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _character_length(data: bytes, place: int) -> int:
    length = 1
    while place + length < len(data) and data[place + length] & 0xC0 == 0x80:
        length += 1
    return length
