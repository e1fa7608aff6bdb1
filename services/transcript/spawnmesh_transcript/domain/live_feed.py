"""The order in which a watcher gets entries and drafts, so that each draft is either confirmed by
an entry or retracted.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_transcript.domain.drafts import (
    DraftId,
    LiveDraft,
    OutputKind,
    Piece,
    content_of,
    pieces_behind,
)

DIGEST_BYTES = 16
"""Of SHA-256, in a position. A digest protects from an accident, not from who made the position."""


@dataclass(frozen=True, slots=True)
class SentOutput:
    """The number of bytes that were sent of one kind of output, and their digest if any were."""

    size: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """A position in the feed: entries up to `seq` were sent and, of the open draft, the outputs of
    each kind, in the order of OutputKind.
    """

    seq: int = 0
    draft: DraftId | None = None
    sent: tuple[SentOutput, ...] = (SentOutput(),) * len(OutputKind)

    @property
    def end_offset(self) -> int:
        """The number of bytes of the draft that were sent."""
        return sum(one.size for one in self.sent)

    @property
    def sizes(self) -> dict[OutputKind, int]:
        """The number of bytes of each kind."""
        return {kind: one.size for kind, one in zip(OutputKind, self.sent, strict=True)}


@dataclass(frozen=True, slots=True)
class FedEntry:
    """An entry as the feed sees it. `answer` has the pieces of a run's answer; None for any other
    entry.
    """

    seq: int
    run_id: str
    epoch: int
    answer: tuple[Piece, ...] | None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece that follows what was sent of the draft before."""

    draft: DraftId
    model: str
    piece: Piece
    begins_draft: bool


@dataclass(frozen=True, slots=True)
class Retracted:
    """The deltas that were sent of the draft do not count."""

    draft: DraftId


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry of this seq was appended. If it completes the draft, it is what was sent."""

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
    # Over what was sent of each kind; None if the position was given, and that was not seen here.
    _digests: dict[OutputKind, Any] | None = field(default=None, init=False)

    @property
    def wanted_offset(self) -> int:
        """The offset from which on the feed needs the pieces of the open draft."""
        return self.position.end_offset if self._digests is not None else 0

    def take_entry(self, entry: FedEntry) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        """Yield the events of the next entry."""
        open_draft, completes = self.position.draft, False
        if open_draft is not None and entry.answer is not None and _is_of(entry, open_draft):
            rest = self._rest_of(entry.answer)
            completes = rest is not None
            if rest is not None:
                yield from self._grow(open_draft, "", rest)
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
        if draft is None or not draft.pieces:
            return
        if draft.pieces[0].offset == 0:
            yield from self._take_whole(draft)
        elif draft.pieces[0].offset == self.position.end_offset and self._digests is not None:
            yield from self._grow(draft.draft, draft.model, [stored.piece for stored in draft.pieces])
        else:
            self._digests = None  # The server lost some of it: read the draft from its beginning.

    def _take_whole(self, draft: LiveDraft) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        """Continue a draft that is here from its beginning."""
        pieces = [stored.piece for stored in draft.pieces]
        if draft.draft == self.position.draft:
            self._digests = None
            if sum(piece.size for piece in pieces) < self.position.end_offset:
                return  # The server lost some of it. The run writes it again.
            rest = self._rest_of(pieces)
            if rest is not None:
                yield from self._grow(draft.draft, draft.model, rest)
                return
            yield self._retract(draft.draft)
        yield from self._grow(draft.draft, draft.model, pieces)

    def _rest_of(self, pieces: Iterable[Piece]) -> list[Piece] | None:
        """Return what follows what was sent of the draft; None if the pieces begin otherwise."""
        whole, digests = tuple(pieces), {}
        for kind, sent in zip(OutputKind, self.position.sent, strict=True):
            content = content_of(whole, kind)
            digests[kind] = hashlib.sha256(content[: sent.size])
            if len(content) < sent.size or SentOutput(sent.size, _digest(digests[kind], sent.size)) != sent:
                return None
        try:
            rest = list(pieces_behind(whole, self.position.sizes))
        except ValueError:
            return None
        self._digests = digests
        return rest

    def _grow(
        self, draft: DraftId, model: str, pieces: Iterable[Piece]
    ) -> Iterator[tuple[FeedEvent, FeedPosition]]:
        for piece in pieces:
            begins = self.position.draft is None
            if begins:
                self._digests = {kind: hashlib.sha256() for kind in OutputKind}
            elif self._digests is None:
                raise RuntimeError("a draft grows whose beginning was not seen")
            assert self._digests is not None
            self._digests[piece.kind].update(piece.content)
            sizes = self.position.sizes
            sizes[piece.kind] += piece.size
            sent = tuple(SentOutput(sizes[kind], _digest(self._digests[kind], sizes[kind])) for kind in sizes)
            self.position = FeedPosition(self.position.seq, draft, sent)
            yield Delta(draft, model, piece, begins), self.position

    def _retract(self, draft: DraftId) -> tuple[FeedEvent, FeedPosition]:
        self._move(self.position.seq, None)
        return Retracted(draft), self.position

    def _move(self, seq: int, draft: DraftId | None) -> None:
        """Go on to the seq, and forget the open draft unless it is the one that is kept."""
        if draft is None:
            self._digests = None
            self.position = FeedPosition(seq)
        else:
            self.position = FeedPosition(seq, draft, self.position.sent)


def _digest(hashed: Any, size: int) -> bytes:
    return bytes(hashed.digest()[:DIGEST_BYTES]) if size else b""


def _is_of(entry: FedEntry, draft: DraftId) -> bool:
    return (entry.run_id, entry.epoch) == (draft.run_id, draft.epoch)
