"""The feed of a watcher: whatever happens to drafts, they are confirmed or retracted."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from spawnmesh_transcript.domain.drafts import (
    DraftCall,
    DraftId,
    LiveDraft,
    OutputKind,
    Piece,
    StoredPiece,
    content_of,
    pieces_behind,
)
from spawnmesh_transcript.domain.live_feed import (
    DIGEST_BYTES,
    Appended,
    Delta,
    FedEntry,
    FeedEvent,
    FeedPosition,
    LiveFeed,
    Retracted,
    SentOutput,
)

TEXTS = st.text(alphabet="aé€😀 ", min_size=1, max_size=6)
CALLS = [DraftCall("c1", "read_file"), DraftCall("c2", "write_file")]


def text(written: str) -> Piece:
    return Piece(OutputKind.TEXT, written.encode())


PIECES = st.one_of(
    TEXTS.map(text),
    TEXTS.map(text),
    TEXTS.map(lambda written: Piece(OutputKind.THINKING, written.encode())),
    st.builds(
        lambda written, call: Piece(OutputKind.TOOL_CALL, written.encode(), call, begins_call=True),
        st.just("") | TEXTS,
        st.sampled_from(CALLS),
    ),
    TEXTS.map(lambda written: Piece(OutputKind.TOOL_CALL, written.encode(), CALLS[0])),
)


def contents(pieces: Iterable[Piece]) -> dict[OutputKind, bytes]:
    whole = list(pieces)
    return {kind: content_of(whole, kind) for kind in OutputKind}


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, each with what continues it."""
    whole: list[Piece] = []
    for piece in pieces:
        if whole and (whole[-1].kind, whole[-1].call) == (piece.kind, piece.call) and not piece.begins_call:
            whole[-1] = replace(whole[-1], text=whole[-1].text + piece.text)
        else:
            whole.append(piece)
    return whole


@dataclass
class Stored:
    """A transcript as the service stores it: entries, and the draft of the one writer.

    `said` is all that the run has said in the draft. It writes again what the server has lost.
    """

    entries: list[FedEntry] = field(default_factory=list)
    draft: DraftId | None = None
    said: list[Piece] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    has_lost: bool = False
    epoch: int = 1
    number: int = 0

    def begin(self, piece: Piece) -> None:
        self.number += 1
        self.draft = DraftId("run_1", self.epoch, self.number)
        self.said, self.pieces, self.has_lost = [piece], [piece], False

    def grow(self, piece: Piece) -> None:
        if self.draft is not None:
            self.said.append(piece)
            stored = contents(self.pieces)
            rest = pieces_behind(self.said, {kind: len(stored[kind]) for kind in OutputKind})
            self.pieces.extend(joined(rest))

    def lose(self) -> None:
        """Forget the newest piece, as a server that crashes."""
        self.pieces, self.has_lost = self.pieces[:-1], True

    def answer(self, rest: Piece | None) -> None:
        """Append an answer: the draft and a rest, or something else."""
        said = [text("another")] if rest is None else [*self.said, rest]
        self._append("run_1", tuple(said))
        self.draft, self.said, self.pieces = None, [], []

    def note(self) -> None:
        self._append("", None)

    def take_over(self) -> None:
        self.epoch += 1
        self.number, self.draft, self.said, self.pieces = 0, None, [], []

    def _append(self, run_id: str, answer: tuple[Piece, ...] | None) -> None:
        self.entries.append(FedEntry(len(self.entries) + 1, run_id, self.epoch, answer))

    def draft_for(self, feed: LiveFeed) -> LiveDraft | None:
        """Return the draft as the store reads it for a feed."""
        if self.draft is None or not self.pieces:
            return None
        begin = feed.wanted_offset if feed.position.draft == self.draft else 0
        placed, offset = [], 0
        for piece in self.pieces:
            if offset >= begin:
                placed.append(StoredPiece(offset, piece))
            offset += piece.size
        return LiveDraft(self.draft, "p/m", tuple(placed))


class Watcher:
    """Reads the feed, and checks what it is told."""

    def __init__(self) -> None:
        self.feed = LiveFeed(FeedPosition())
        self.said: list[Piece] = []
        self.open: DraftId | None = None
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
                assert event.piece.size
                event.piece.text.decode()
                self.open = event.draft
                self.said.append(event.piece)
            case Retracted():
                assert self.open == event.draft
                self.open, self.said = None, []
            case Appended():
                assert entry is not None
                assert event.seq == entry.seq == self.seq + 1
                self.seq = event.seq
                if event.completes_draft:
                    assert self.open is not None
                    assert contents(entry.answer or ()) == contents(self.said)
                    self.open, self.said = None, []
        assert position.draft == self.open
        assert position.seq == self.seq
        if self.open is not None:
            sent = contents(self.said)
            assert position.sizes == {kind: len(sent[kind]) for kind in OutputKind}
            assert position.sent == tuple(sent_output(sent[kind]) for kind in OutputKind)


def sent_output(content: bytes) -> SentOutput:
    digest = hashlib.sha256(content).digest()[:DIGEST_BYTES] if content else b""
    return SentOutput(len(content), digest)


STEPS = st.one_of(
    st.tuples(st.just("begin"), PIECES),
    st.tuples(st.just("grow"), PIECES),
    st.tuples(st.just("grow"), PIECES),
    st.tuples(st.just("lose")),
    st.tuples(st.just("answer"), st.none() | PIECES),
    st.tuples(st.just("note")),
    st.tuples(st.just("take_over")),
    st.tuples(st.just("look"), st.integers(1, 3)),
    st.tuples(st.just("look"), st.integers(1, 3)),
    st.tuples(st.just("come_back")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
# The run writes what was lost in a larger piece, and the watcher is at no beginning of a piece.
@example([("begin", text("a")), ("grow", text("b")), ("look", 3), ("lose",), ("grow", text("c"))])
def test_a_draft_is_confirmed_by_its_entry_or_retracted(steps: list[tuple[object, ...]]) -> None:
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
            stored.grow(text("a"))
            for _ in range(2):
                watcher.look(stored, 3)
    assert contents(watcher.said) == contents(stored.said)


def test_a_forged_position_retracts_the_draft() -> None:
    draft = DraftId("run_1", 1, 1)
    call = Piece(OutputKind.TOOL_CALL, b"{}", CALLS[0], begins_call=True)
    pieces = (text("é"), text("bcdef"), call)
    nothing = SentOutput()
    head = CALLS[0].head
    for forged in (
        (SentOutput(3, b"\0" * DIGEST_BYTES), nothing, nothing),
        # The digest is right, and the offset is within a character.
        (sent_output("é".encode()[:1]), nothing, nothing),
        # Within the head of a call.
        (nothing, nothing, sent_output(head[:3])),
        (SentOutput(99, b"\0" * DIGEST_BYTES), nothing, nothing),
        (replace(sent_output("ébcdef".encode()), size=99), nothing, nothing),
        (SentOutput(0, b"\0" * DIGEST_BYTES), nothing, nothing),
    ):
        position = FeedPosition(1, draft, forged)
        placed = (StoredPiece(0, pieces[0]), StoredPiece(2, pieces[1]), StoredPiece(7, pieces[2]))
        events = [event for event, _ in LiveFeed(position).take_draft(LiveDraft(draft, "p/m", placed))]
        if position.end_offset <= sum(piece.size for piece in pieces):
            deltas = [Delta(draft, "p/m", piece, piece is pieces[0]) for piece in pieces]
            assert events == [Retracted(draft), *deltas]
        else:
            assert events == []  # As if the server had lost some of it.
        events = [event for event, _ in LiveFeed(position).take_entry(FedEntry(2, "run_1", 1, pieces))]
        assert events == [Retracted(draft), Appended(2, completes_draft=False)]


def test_the_rest_of_each_kind_comes_from_the_entry() -> None:
    draft = DraftId("run_1", 1, 1)
    thinking = Piece(OutputKind.THINKING, b"Hm. Well.")
    call = Piece(OutputKind.TOOL_CALL, b'{"path":"a"}', CALLS[0], begins_call=True)
    answer = (thinking, text("I read it."), call)
    sent = (sent_output(b"I read"), sent_output(b"Hm. "), sent_output(CALLS[0].head + b'{"pa'))
    events = [
        event
        for event, _ in LiveFeed(FeedPosition(1, draft, sent)).take_entry(FedEntry(2, "run_1", 1, answer))
    ]
    rest = [
        Piece(OutputKind.THINKING, b"Well."),
        text(" it."),
        Piece(OutputKind.TOOL_CALL, b'th":"a"}', CALLS[0]),
    ]
    assert events == [*(Delta(draft, "", piece, begins_draft=False) for piece in rest), Appended(2, True)]
