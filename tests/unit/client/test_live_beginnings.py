"""`Session.live` and `Session.events` from a place that is no cursor."""

from spawnmesh_client import EntryAppended, SessionChanged, TextDelta
from spawnmesh_client.testing import FakeMesh


async def test_live_begins_behind_the_event_and_the_entry_that_are_named() -> None:
    mesh = FakeMesh()
    mesh.answers("forty-two")
    session = await mesh.spawn("Work.")
    await session.result(60)
    everything = [one async for one in session.live()]
    behind = [one async for one in session.live(after_event=2, after_seq=3)]
    events = [one.event.number for one in behind if isinstance(one, SessionChanged)]
    assert events == [
        one.event.number for one in everything if isinstance(one, SessionChanged) and one.event.number > 2
    ]
    entries = [one.entry.seq for one in behind if isinstance(one, EntryAppended)]
    assert entries == [
        one.entry.seq for one in everything if isinstance(one, EntryAppended) and one.entry.seq > 3
    ]
    answers = {one.entry.seq for one in everything if isinstance(one, EntryAppended) and one.completes_draft}
    assert any(isinstance(one, TextDelta) for one in behind) == bool(answers & set(entries))


async def test_events_end_at_the_newest_one_of_a_session_that_is_open() -> None:
    mesh = FakeMesh()
    mesh.answers("forty-two")
    session = await mesh.spawn("Work.", mode="SESSION")
    await session.result(60)
    events = [event async for event in session.events(wait=False)]
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert len(events) >= 3
    assert [event async for event in session.events(after=events[-2].number, wait=False)] == events[-1:]
