"""The stream of a session's page: exact from any cursor, and over when there is no more to see."""

import re
from contextlib import aclosing

import httpx2
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session
from spawnmesh_client.views import Role
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import read_html
from tests.support.console.said import ended_session
from tests.support.console.streams import StreamEvent, stream_events
from tests.support.console.visitors import ConsoleTenant, SignedIn, read


def live_of(session: Session, query: str = "") -> str:
    return f"/sessions/{session.session_id}/live{query}"


async def all_of(client: httpx2.AsyncClient, path: str, cursor: str = "") -> list[StreamEvent]:
    async with aclosing(stream_events(client, path, cursor)) as events:
        return [event async for event in events]


def seen(events: list[StreamEvent]) -> tuple[list[str], list[str], str]:
    """Return the ids of entries, the places of marks and states, and the text that a reader has."""
    entries, happened, draft = [], [], ""
    for event in events:
        if event.name == "delta":
            said = event.data["text"] if event.data["kind"] == "text" else ""
            draft = (draft if not event.data["begins"] else "") + said
        elif event.name == "entry":
            entries += re.findall(r'id="(e-\d+)"', event.data["html"])
        elif event.name == "head":
            happened += re.findall(r'id="(event-\d+)"', event.data.get("event", ""))
        elif event.name == "mark":
            happened.append(event.data["mark"])
    return entries, happened, draft


def texts_of(events: list[StreamEvent], kind: str = "text") -> list[str]:
    """Return the deltas of this kind."""
    return [one.data["text"] for one in events if one.name == "delta" and one.data["kind"] == kind]


async def test_stream_is_the_same_from_every_place(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await mesh.spawn("Count.", model="scripted/slow")
    client = await signed_in()
    events = []
    async with aclosing(stream_events(client, live_of(session))) as live:
        async for event in live:
            events.append(event)
            if event.name == "delta" and event.data["kind"] == "text" and len(texts_of(events)) == 2:
                await session.interrupt()
    assert events[-1].name == "end"
    entries, happened, draft = seen(events)
    stored = [entry async for entry in session.transcript()]
    shown = [f"e-{entry.seq}" for entry in stored if entry.kind in ("MESSAGE", "NOTE")]
    assert entries == shown
    answers = [entry.text for entry in stored if entry.role is Role.ASSISTANT]
    assert draft == answers[-1], "the parts are together the answer"
    assert draft.startswith("1 2 3 ")
    [completed] = [event for event in events if event.name == "entry" and event.data["completes"]]
    shown_answer = read_html(completed.data["html"]).text
    assert answers[-1].strip() in shown_answer
    thought = "".join(texts_of(events, "thinking"))
    assert thought, "the model thinks"
    assert thought in shown_answer
    assert "succeeded" not in events[0].data["html"], "the stream begins with the state"
    assert "interrupted" in events[-2].data["html"], "and ends with it"
    for place, event in enumerate(events, 1):
        if not event.cursor:
            continue  # A browser keeps the one before.
        rest = seen(await all_of(client, live_of(session), event.cursor))
        before = seen(events[:place])
        assert before[0] + rest[0] == entries
        assert before[1] + rest[1] == happened
        has_entry = completed in events[:place]
        assert before[2] + rest[2] == draft or (not before[2] and not rest[2]), "all of the text, or none"
        assert not has_entry or not rest[2]


async def test_stream_begins_where_the_page_ends(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    client = await signed_in()
    page = await read(client, f"/sessions/{session.session_id}")
    [live] = [one["data-live"] for one in page.tags("ol") if "data-live" in one]
    on_page = {one["id"] for one in page.tags("li") if "id" in one}
    await session.send("And goodbye.")
    await session.result(120)
    await session.kill()
    entries, happened, _ = seen(await all_of(client, live))
    everything = await all_of(client, live_of(session))
    assert not on_page & {*entries, *happened}
    shown = {place for place in on_page if place.startswith("e")}
    assert shown | {*entries, *happened} - {"final"} == {*seen(everything)[0], *seen(everything)[1]} - {
        "final"
    }


async def test_stream_says_that_the_session_was_deleted(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await ended_session(mesh)
    client = await signed_in()
    names = []
    async with aclosing(stream_events(client, live_of(session))) as events:
        async for event in events:
            names.append(event.name)
            if names.count("entry") == 1:
                await session.delete()
    assert names[-1] in ("gone", "end"), "the end of a killed session may come first"
    assert (await client.get(live_of(session))).status_code == 404


async def test_stream_ends_with_the_token(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session = await ended_session(tenant.mesh)
    client = await signed_in(tenant.token(ClientRole.READER, seconds=4))
    events = await all_of(client, live_of(session))
    assert events[-1].name == "reload"


async def test_cursor_of_another_session_is_refused(mesh: Mesh, signed_in: SignedIn) -> None:
    one, other = await ended_session(mesh), await ended_session(mesh)
    await one.kill()
    await other.kill()
    client = await signed_in()
    last = [event for event in await all_of(client, live_of(one)) if event.cursor][-1]
    streams = [(live_of(other), cursor) for cursor in (last.cursor, "nonsense", "-1.")]
    for path, cursor in [*streams, (live_of(other, "?cursor=1.%C3%A9"), "")]:
        names = [event.name for event in await all_of(client, path, cursor)]
        assert names[-1] == "reload"
        assert {*names[:-1]} <= {"head"}, "the head comes first"
