"""Drafts: an answer that is not an entry yet."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

MAX_DRAFT_BYTES = 1024 * 1024
"""The most that is kept of a draft. The watchers get what follows with the entry."""
MAX_PIECES = 10_000
"""The most pieces of a draft: those of an answer of a quarter of an hour, ten in a second."""
MAX_ENTRIES_MEANWHILE = 1_000
"""The most entries that others append while a model answers, so that a draft is kept."""

# The bytes behind the first one of a character in UTF-8. A caller may have made a position.
_WITHIN_CHARACTER = frozenset(range(0x80, 0xC0))


class OutputKind(StrEnum):
    """A kind of output. The pieces of one kind, in order, are what an answer has of it."""

    TEXT = "TEXT"
    THINKING = "THINKING"
    TOOL_CALL = "TOOL_CALL"


@dataclass(frozen=True, slots=True)
class DraftId:
    """A draft: the claim of the run that gives it, and its number among those of the claim."""

    run_id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class DraftCall:
    """The tool call to which a piece belongs."""

    tool_call_id: str
    name: str

    @property
    def head(self) -> bytes:
        """The bytes that a piece which begins the call counts before its text."""
        return f"{self.tool_call_id}\0{self.name}\0".encode()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: its text in UTF-8, and its call if it is of one."""

    kind: OutputKind
    text: bytes
    call: DraftCall | None = None
    begins_call: bool = False

    @property
    def content(self) -> bytes:
        """The bytes that it counts in its draft and in its kind."""
        return self._head + self.text

    @property
    def size(self) -> int:
        """The number of these bytes."""
        return len(self._head) + len(self.text)

    @property
    def _head(self) -> bytes:
        return self.call.head if self.call is not None and self.begins_call else b""

    def can_be_cut(self, count: int) -> bool:
        """Return whether the first bytes end in no character and in no head of a call."""
        at = count - len(self._head)
        return count == 0 or (at >= 0 and (at >= len(self.text) or self.text[at] not in _WITHIN_CHARACTER))

    def behind(self, count: int) -> "Piece":
        """Return the piece without its first bytes, at which it can be cut."""
        if count == 0:
            return self
        return replace(self, text=self.text[count - len(self._head) :], begins_call=False)


@dataclass(frozen=True, slots=True)
class WrittenPieces:
    """Pieces that a run adds behind the first `offset` bytes of its draft."""

    draft: DraftId
    after_seq: int
    model: str
    offset: int
    pieces: tuple[Piece, ...]

    @property
    def end_offset(self) -> int:
        return self.offset + sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A stored piece, and the number of bytes before it in its draft."""

    offset: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class LiveDraft:
    """A draft with some of its pieces, in order and without gaps between them."""

    draft: DraftId
    model: str
    pieces: tuple[StoredPiece, ...]


def content_of(pieces: Iterable[Piece], kind: OutputKind) -> bytes:
    """Return the bytes of the pieces of a kind, one behind the other."""
    return b"".join(piece.content for piece in pieces if piece.kind is kind)


def pieces_behind(pieces: Iterable[Piece], sizes: dict[OutputKind, int]) -> Iterator[Piece]:
    """Yield the pieces behind the first bytes of each kind, without empty ones.

    Raises ValueError if a piece cannot be cut there.
    """
    left = dict(sizes)
    for piece in pieces:
        known = min(left[piece.kind], piece.size)
        left[piece.kind] -= known
        if not piece.can_be_cut(known):
            raise ValueError("the position is within a character")
        if known < piece.size:
            yield piece.behind(known)
