"""The order in which a watcher gets entries and drafts, so that the text of each draft is either
confirmed by an entry or retracted.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_transcript.domain.drafts import DraftId, LiveDraft

# The bytes behind the first one of a character in UTF-8. A caller may have made the position.
_WITHIN_CHARACTER = [bytes([byte]) for byte in range(0x80, 0xC0)]


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """A position in the feed: entries up to `seq` were sent and, of the open draft, `end_offset`
    bytes, whose SHA-256 is `digest`.
    """

    seq: int = 0
    draft: DraftId | None = None
    end_offset: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class FedEntry:
    """An entry as the feed sees it. `answer` is the text of a run's answer in UTF-8; None for any
    other entry.
    """

    seq: int
    run_id: str
    epoch: int
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that follows what was sent of the draft before."""

    draft: DraftId
    model: str
    text: str
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class Retracted:
    """The text that was sent of the draft does not count."""

    draft: DraftId


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry of this seq was appended. If it completes the draft, its text is what was sent."""

    seq: int
    completes_draft: bool


FeedEvent = Delta | Retracted | Appended


@dataclass(slots=True)
class LiveFeed:
    """The state of one watcher.

    Give it the entries behind `position`, and then the draft as the same snapshot has it. Each
    event comes with the position behind it.
    """

    position: FeedPosition
    # Over what was sent; None if the position was given, and its text was not seen here.
    _digest: Any = field(default=None, init=False)

    @property
    def wanted_offset(self) -> int:
        """The offset from which on the feed needs the pieces of the open draft."""
        return self.position.end_offset if self._digest is not None else 0

    def take_entry(self, entry: FedEntry) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        """Yield the events of the next entry."""
        open_draft, completes = self.position.draft, False
        if open_draft is not None and entry.answer is not None and _is_of(entry, open_draft):
            completes = self._continues(entry.answer)
            if completes:
                yield from self._grow(open_draft, "", entry.answer[self.position.end_offset :])
            else:
                yield self._retract(open_draft)
        kept = None if completes else self.position.draft
        self._move(entry.seq, kept)
        yield Appended(entry.seq, completes), self.position

    def take_draft(self, draft: LiveDraft | None) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        """Yield the events of the draft as it is now; None if there is none."""
        open_draft = self.position.draft
        if open_draft is not None and (draft is None or draft.draft != open_draft):
            yield self._retract(open_draft)
        if draft is None:
            return
        if draft.draft == open_draft and self._begins(draft):
            yield from self._verify(draft)
        yield from self._take_pieces(draft)

    @staticmethod
    def _begins(draft: LiveDraft) -> bool:
        """Return whether the draft is here from its beginning."""
        return bool(draft.pieces) and draft.pieces[0].offset == 0

    def _verify(self, draft: LiveDraft) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        """Compare the draft with what was sent of it before the watcher came back."""
        text = b"".join(piece.text for piece in draft.pieces)
        self._digest = None
        if len(text) < self.position.end_offset:
            return  # The server lost some of it. The run writes it again.
        if not self._continues(text):
            yield self._retract(draft.draft)

    def _take_pieces(self, draft: LiveDraft) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        if self.position.draft is not None and self._digest is None:
            return
        if not self._begins(draft) and draft.pieces and draft.pieces[0].offset != self.position.end_offset:
            self._digest = None  # The server lost some of it: read the draft from its beginning.
            return
        for piece in draft.pieces:
            known = max(0, self.position.end_offset - piece.offset)
            yield from self._grow(draft.draft, draft.model, piece.text[known:])

    def _continues(self, text: bytes) -> bool:
        """Return whether the text begins with what was sent of the draft."""
        end = self.position.end_offset
        if len(text) < end or text[end : end + 1] in _WITHIN_CHARACTER:
            return False
        digest = hashlib.sha256(text[:end])
        if digest.digest() != self.position.digest:
            return False
        self._digest = digest
        return True

    def _grow(self, draft: DraftId, model: str, text: bytes) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        if not text:
            return
        begins = self.position.draft is None
        if begins:
            self._digest = hashlib.sha256()
        elif self._digest is None:
            raise RuntimeError("a draft grows whose beginning was not seen")
        self._digest.update(text)
        end = self.position.end_offset + len(text)
        self.position = FeedPosition(self.position.seq, draft, end, self._digest.digest())
        yield Delta(draft, model, text.decode(), begins), self.position

    def _retract(self, draft: DraftId) -> tuple[FeedEvent, FeedPosition]:
        self._move(self.position.seq, None)
        return Retracted(draft), self.position

    def _move(self, seq: int, draft: DraftId | None) -> None:
        """Go on to the seq, and forget the open draft unless it is the one that is kept."""
        if draft is None:
            self._digest = None
            self.position = FeedPosition(seq)
        else:
            self.position = FeedPosition(seq, draft, self.position.end_offset, self.position.digest)


def _is_of(entry: FedEntry, draft: DraftId) -> bool:
    return (entry.run_id, entry.epoch) == (draft.run_id, draft.epoch)
