"""Events of a provider's stream, from bytes that arrive in any pieces and numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.clients.providers.sse import MAX_EVENT_BYTES, EventReader

STREAM = b"data: one\r\n\r\n: ping\r\n\r\ndata: two\r\ndata: lines\r\n\r\ndata: last"
EVENTS = ["one", "two\nlines", "last"]
PIECE = bytes(64 * 1024)


def read(*pieces: bytes) -> list[str]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


def read_on(reader: EventReader, piece: bytes) -> None:
    """Feed the piece until it is more than an event may have."""
    for _ in range(MAX_EVENT_BYTES // len(PIECE) + 1):
        assert reader.feed(piece) == []


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[begin:end] for begin, end in pairwise(places))) == EVENTS


@pytest.mark.parametrize("piece", [PIECE, b"data: " + PIECE + b"\n", b": " + PIECE + b"\n"])
def test_event_without_an_end_is_refused(piece: bytes) -> None:
    reader = EventReader()
    with pytest.raises(ValueError, match="an event of more than 16777216 bytes"):
        read_on(reader, piece)


def test_long_stream_of_short_events_is_read() -> None:
    reader = EventReader()
    event = b"data: " + bytes(64 * 1024) + b"\n\n"
    assert sum(
        len(reader.feed(event)) for _ in range(2 * MAX_EVENT_BYTES // len(event))
    ) > MAX_EVENT_BYTES // len(event)
