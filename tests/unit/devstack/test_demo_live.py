"""The watcher of the demo notices text that differs from its entry, and entries that are missing."""

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.live_service_pb2 import DraftDelta, DraftRetracted, EntryAppended
from spawnmesh_devstack.demo_live import Heard


def said(seq: int, text: str) -> Entry:
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
    return Entry(seq=seq, body=EntryBody(message=message))


STORED = [said(1, "One."), said(2, "Two three.")]


def heard(second: str, *, entries: list[Entry] = STORED) -> Heard:
    """Return the watcher of a retracted draft, and of a second answer in two pieces."""
    watcher = Heard()
    watcher.take(DraftDelta(text="Oops", begins_draft=True))
    watcher.take(DraftRetracted())
    watcher.take(EntryAppended(entry=entries[0]))
    watcher.take(DraftDelta(text="Two ", begins_draft=True))
    watcher.take(DraftDelta(text=second))
    for entry in entries[1:]:
        watcher.take(EntryAppended(entry=entry, completes_draft=True))
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
