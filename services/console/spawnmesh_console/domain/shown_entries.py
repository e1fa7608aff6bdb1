"""Entries of a transcript as they are shown."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

MAX_SHOWN_CHARS = 6000
"""A longer text is shown by its beginning, with a link to all of it."""
LAID_OUT_CHARS = MAX_SHOWN_CHARS + 1
"""So much of the arguments of a call is laid out: one more, to know that there is more."""


class Speaker(StrEnum):
    """The source of an entry. It decides how the entry looks."""

    PERSON = auto()
    MODEL = auto()
    TOOL = auto()
    MESH = auto()


class BlockKind(StrEnum):
    """The kinds of parts of an entry."""

    TEXT = auto()
    THINKING = auto()
    CALL = auto()
    IMAGE = auto()
    DATA = auto()


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A part of an entry. `title` is the name of a tool or a type; an image has no text."""

    kind: BlockKind
    text: str = ""
    title: str = ""
    place: int = 0
    size_bytes: int = 0

    @property
    def shown(self) -> str:
        """The beginning of the text, which is shown on the page."""
        return self.text[:MAX_SHOWN_CHARS]

    @property
    def is_cut(self) -> bool:
        """True if the text has more than what is shown."""
        return len(self.text) > MAX_SHOWN_CHARS

    @property
    def first_line(self) -> str:
        """The beginning of the text in one line, for a block that is folded."""
        line = " ".join(self.text[:400].split())
        return line if len(line) <= 120 else line[:120] + "…"


class AnswerMark(StrEnum):
    """The meaning that a later label gives to an entry."""

    SUPERSEDED = auto()
    FINAL = auto()


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry. `is_folded` means that only its heading is open at first."""

    seq: int
    entry_id: str
    time: datetime
    speaker: Speaker
    heading: str
    blocks: tuple[ShownBlock, ...] = ()
    token_count: int = 0
    is_error: bool = False
    is_folded: bool = False
    mark: AnswerMark | None = None
    explanation: str = ""

    @property
    def first_line(self) -> str:
        """The beginning of the entry in one line."""
        return next((block.first_line for block in self.blocks if block.text), "")


@dataclass(frozen=True, slots=True)
class EntryMark:
    """A label on an entry of the transcript."""

    entry_id: str
    mark: AnswerMark
