"""Drafts: the text of an answer that is not an entry yet."""

from dataclasses import dataclass

MAX_DRAFT_BYTES = 1024 * 1024
"""The most that is kept of a draft. The watchers get what follows with the entry."""
MAX_PIECES = 10_000
"""The most pieces of a draft: those of an answer of a quarter of an hour, ten in a second."""
MAX_ENTRIES_MEANWHILE = 1_000
"""The most entries that others append while a model answers, so that a draft is kept."""


@dataclass(frozen=True, slots=True)
class DraftId:
    """A draft: the claim of the run that gives it, and its number among those of the claim."""

    run_id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class DraftPiece:
    """A piece that a run adds behind the first `offset` bytes of its draft, in UTF-8."""

    draft: DraftId
    after_seq: int
    model: str
    offset: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored piece, and the bytes before it."""

    offset: int
    text: bytes


@dataclass(frozen=True, slots=True)
class LiveDraft:
    """A draft with some of its pieces, in order and without gaps between them."""

    draft: DraftId
    model: str
    pieces: tuple[Piece, ...]
