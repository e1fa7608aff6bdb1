"""The watcher of the demo notices text that differs from its entry, and entries that are missing."""

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.session.v1.session_service_pb2 import WatchSessionResponse
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh_devstack.demo_live import Heard


def said(seq: int, text: str) -> Entry:
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
    return Entry(seq=seq, body=EntryBody(message=message))


STORED = [said(1, "One."), said(2, "Two three.")]


def piece(text: str, *, begins: bool = False) -> WatchSessionResponse:
    return WatchSessionResponse(draft_delta=DraftDelta(text=text, begins_draft=begins))


def appended(entry: Entry, *, completes: bool = False) -> WatchSessionResponse:
    return WatchSessionResponse(entry_appended=EntryAppended(entry=entry, completes_draft=completes))


def heard(second: str, *, entries: list[Entry] = STORED) -> Heard:
    """Return the watcher of a retracted draft, and of a second answer in two pieces."""
    watcher = Heard()
    watcher.take(piece("Oops", begins=True))
    watcher.take(WatchSessionResponse(draft_retracted=DraftRetracted()))
    watcher.take(appended(entries[0]))
    watcher.take(WatchSessionResponse())  # A kind that a newer service sends.
    watcher.take(piece("Two ", begins=True))
    watcher.take(piece(second))
    for entry in entries[1:]:
        watcher.take(appended(entry, completes=True))
    return watcher


def test_text_that_is_that_of_the_entries_is_exact() -> None:
    watcher = heard("three.")
    assert watcher.is_exactly(STORED)
    assert not watcher.is_exactly([*STORED, said(3, "It did not come.")])
    assert (watcher.piece_count, watcher.retracted_count, len(watcher.entries)) == (3, 1, 2)


@pytest.mark.parametrize("second", ["", "three", "four."])
def test_other_text_is_noticed(second: str) -> None:
    assert not heard(second).is_exactly(STORED)


def test_entries_that_are_missing_or_come_twice_are_noticed() -> None:
    assert not heard("three.", entries=[STORED[1], STORED[1]]).is_exactly(STORED)
    assert not heard("three.", entries=[STORED[1]]).is_exactly(STORED)
