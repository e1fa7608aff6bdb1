"""The feed of a watcher: whatever happens to drafts, their text is confirmed or retracted."""

import hashlib
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_transcript.domain.drafts import DraftId, LiveDraft, Piece
from spawnmesh_transcript.domain.live_feed import (
    Appended,
    Delta,
    FedEntry,
    FeedEvent,
    FeedPosition,
    LiveFeed,
    Retracted,
)

TEXTS = st.text(alphabet="aé€😀 ", min_size=1, max_size=6)


@dataclass
class Stored:
    """A transcript as the service stores it: entries, and the draft of the one writer.

    `said` is all that the run has said in the draft. It writes again what the server has lost.
    """

    entries: list[FedEntry] = field(default_factory=list)
    draft: DraftId | None = None
    said: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    has_lost: bool = False
    epoch: int = 1
    number: int = 0

    def begin(self, text: str) -> None:
        self.number += 1
        self.draft = DraftId("run_1", self.epoch, self.number)
        self.said, self.pieces, self.has_lost = text.encode(), [text.encode()], False

    def grow(self, text: str) -> None:
        if self.draft is not None:
            self.said += text.encode()
            self.pieces.append(self.said[len(b"".join(self.pieces)) :])

    def lose(self) -> None:
        """Forget the newest piece, as a server that crashes."""
        self.pieces, self.has_lost = self.pieces[:-1], True

    def answer(self, rest: str | None) -> None:
        """Append an answer: the draft and a rest, or something else."""
        said = b"another" if rest is None else self.said + rest.encode()
        self._append("run_1", said)
        self.draft, self.said, self.pieces = None, b"", []

    def note(self) -> None:
        self._append("", None)

    def take_over(self) -> None:
        self.epoch += 1
        self.number, self.draft, self.said, self.pieces = 0, None, b"", []

    def _append(self, run_id: str, answer: bytes | None) -> None:
        self.entries.append(FedEntry(len(self.entries) + 1, run_id, self.epoch, answer))

    def draft_for(self, feed: LiveFeed) -> LiveDraft | None:
        """Return the draft as the store reads it for a feed."""
        if self.draft is None or not self.pieces:
            return None
        begin = feed.wanted_offset if feed.position.draft == self.draft else 0
        placed, offset = [], 0
        for text in self.pieces:
            if offset >= begin:
                placed.append(Piece(offset, text))
            offset += len(text)
        return LiveDraft(self.draft, "p/m", tuple(placed))


class Watcher:
    """Reads the feed, and checks what it is told."""

    def __init__(self) -> None:
        self.feed = LiveFeed(FeedPosition())
        self.said, self.open = "", None  # type: str, DraftId | None
        self.seq = 0

    def look(self, stored: Stored, page_size: int) -> None:
        behind = [entry for entry in stored.entries if entry.seq > self.feed.position.seq]
        for entry in behind[:page_size]:
            for event, position in self.feed.take_entry(entry):
                self._hear(event, position, entry)
        if len(behind) <= page_size:
            for event, position in self.feed.take_draft(stored.draft_for(self.feed)):
                self._hear(event, position, None)

    def come_back(self) -> None:
        """Go on at another replica, which knows nothing but the cursor."""
        self.feed = LiveFeed(self.feed.position)

    def _hear(self, event: FeedEvent, position: FeedPosition, entry: FedEntry | None) -> None:
        match event:
            case Delta():
                assert event.begins_draft == (self.open is None)
                assert self.open in (None, event.draft)
                assert event.text
                self.open, self.said = event.draft, self.said + event.text
            case Retracted():
                assert self.open == event.draft
                self.open, self.said = None, ""
            case Appended():
                assert entry is not None
                assert event.seq == entry.seq == self.seq + 1
                self.seq = event.seq
                if event.completes_draft:
                    assert self.open is not None
                    assert entry.answer == self.said.encode()
                    self.open, self.said = None, ""
        assert position.draft == self.open
        assert position.seq == self.seq
        if self.open is not None:
            assert position.end_offset == len(self.said.encode())
            assert position.digest == hashlib.sha256(self.said.encode()).digest()


STEPS = st.one_of(
    st.tuples(st.just("begin"), TEXTS),
    st.tuples(st.just("grow"), TEXTS),
    st.tuples(st.just("grow"), TEXTS),
    st.tuples(st.just("lose")),
    st.tuples(st.just("answer"), st.none() | st.just("") | TEXTS),
    st.tuples(st.just("note")),
    st.tuples(st.just("take_over")),
    st.tuples(st.just("look"), st.integers(1, 3)),
    st.tuples(st.just("look"), st.integers(1, 3)),
    st.tuples(st.just("come_back")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_text_of_a_draft_is_confirmed_by_its_entry_or_retracted(steps: list[tuple[object, ...]]) -> None:
    stored, watcher = Stored(), Watcher()
    for name, *arguments in steps:
        if name == "look":
            watcher.look(stored, *arguments)  # type: ignore[arg-type]
        elif name == "come_back":
            watcher.come_back()
        else:
            getattr(stored, str(name))(*arguments)
    # Once nothing changes, the watcher has everything.
    for _ in range(len(stored.entries) + 2):
        watcher.look(stored, 3)
    assert watcher.seq == len(stored.entries)
    if stored.draft is not None and stored.has_lost:
        # The lost text is seen when the run has gone on: it writes that again in larger pieces,
        # and the one behind them shows the watcher that it has missed something.
        for _ in range(2):
            stored.grow("a")
            for _ in range(2):
                watcher.look(stored, 3)
    assert watcher.said == stored.said.decode()


def test_a_forged_digest_retracts_the_draft() -> None:
    draft = DraftId("run_1", 1, 1)
    forged = FeedPosition(1, draft, 3, b"\0" * 32)
    feed = LiveFeed(forged)
    events = [event for event, _ in feed.take_draft(LiveDraft(draft, "p/m", (Piece(0, b"abcdef"),)))]
    assert events == [Retracted(draft), Delta(draft, "p/m", "abcdef", begins_draft=True)]
    feed = LiveFeed(forged)
    events = [event for event, _ in feed.take_entry(FedEntry(2, "run_1", 1, b"abcdef"))]
    assert events == [Retracted(draft), Appended(2, completes_draft=False)]
    # The digest is right, and the offset is within a character.
    halved = replace(forged, end_offset=1, digest=hashlib.sha256("é".encode()[:1]).digest())
    feed = LiveFeed(halved)
    events = [event for event, _ in feed.take_draft(LiveDraft(draft, "p/m", (Piece(0, "é".encode()),)))]
    assert events == [Retracted(draft), Delta(draft, "p/m", "é", begins_draft=True)]
    feed = LiveFeed(halved)
    events = [event for event, _ in feed.take_entry(FedEntry(2, "run_1", 1, "é".encode()))]
    assert events == [Retracted(draft), Appended(2, completes_draft=False)]
    feed = LiveFeed(replace(forged, end_offset=99))
    assert next(feed.take_entry(FedEntry(2, "run_1", 1, b"abc")))[0] == Retracted(draft)
