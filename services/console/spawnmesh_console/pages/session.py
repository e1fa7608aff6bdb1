"""`/sessions/{session_id}`: one session with its family, its events and its transcript."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from spawnmesh_client.session import Session
from spawnmesh_client.views import SessionEvent
from spawnmesh_core.errors import FailedPrecondition, InvalidRequest
from starlette.responses import Response

from spawnmesh_console.clients.family import MAX_MEMBERS, family_of
from spawnmesh_console.clients.shown_entry import shown_entries
from spawnmesh_console.clients.transcript_pages import TranscriptPage, entries_from, newest_entries
from spawnmesh_console.domain.families import lanes_of
from spawnmesh_console.domain.happenings import Happening, happening
from spawnmesh_console.web.visit import Visit, see_other

_NOTICES = {
    "sent": "The message was sent.",
    "interrupted": "The run stops at its next safe point.",
    "killed": "The session and its descendants were ended.",
}
_ENTRIES_BEFORE = 20  # Above the entry that a link names.


async def show_session(visit: Visit) -> Response:
    """Show the session. `at` begins the transcript at an entry, and `before` ends it there.

    `part=family` returns the family alone, for the page that keeps it up to date.
    """
    session = await visit.mesh.session(visit.request.path_params["session_id"])
    if visit.text("part") == "family":
        return visit.render("session_family.html", **await _family(visit, session))
    return await _page(visit, session)


async def send_message(visit: Visit) -> Response:
    """Send the message of the form: for the next turn, or instead of the rest of this one."""
    fields = await visit.form()
    session = await visit.mesh.session(visit.request.path_params["session_id"])
    text, request_id = str(fields.get("text", "")), str(fields.get("request_id", ""))
    try:
        if fields.get("steer"):
            await session.interrupt(text, request_id=request_id or None)
        else:
            await session.send(text, request_id=request_id or None)
    except (InvalidRequest, FailedPrecondition) as error:
        return await _page(visit, await session.refresh(), problem=error.message, text=text, status=400)
    return _back(session, "sent")


async def interrupt(visit: Visit) -> Response:
    """Stop the live run, and leave the session open."""
    fields = await visit.form()
    session = await visit.mesh.session(visit.request.path_params["session_id"])
    await session.interrupt(run_id=str(fields.get("run_id", "")))
    return _back(session, "interrupted")


async def kill(visit: Visit) -> Response:
    """End the session and its descendants."""
    await visit.form()
    session = await visit.mesh.session(visit.request.path_params["session_id"])
    await session.kill()
    return _back(session, "killed")


def head_values(session: Session) -> dict[str, Any]:
    """Return the values of the head of the page, which changes with each event."""
    return {"session": session, "run": session.latest_run}


def happening_of(event: SessionEvent) -> Happening:
    """Return the event in a sentence."""
    state = event.run_state.value if event.run_state is not None else ""
    return happening(
        event.cursor, event.event_time, event.kind.value, state, event.detail, event.child_session_id
    )


async def _page(
    visit: Visit, session: Session, *, problem: str = "", text: str = "", status: int = 200
) -> Response:
    page, events, family = await asyncio.gather(
        _transcript(visit, session), _events(session), _family(visit, session)
    )
    is_live = page.is_newest and not session.state.is_terminal
    after = f"after_event={events[-1].cursor if events else 0}&after_seq={page.last_seq}"
    return visit.render(
        "session.html",
        status=status,
        entries=shown_entries(page.entries),
        page=page,
        events=events,
        live_query=after if is_live else "",
        notice=_NOTICES.get(visit.text("done"), ""),
        problem=problem,
        text=text,
        request_id=uuid4().hex,
        **head_values(session),
        **family,
    )


async def _transcript(visit: Visit, session: Session) -> TranscriptPage:
    if at := visit.number("at"):
        return await entries_from(visit.mesh, session.session_id, at - _ENTRIES_BEFORE)
    return await newest_entries(visit.mesh, session.session_id, before_seq=visit.number("before"))


async def _events(session: Session) -> list[Happening]:
    return [happening_of(event) async for event in session.events(wait=False)]


async def _family(visit: Visit, session: Session) -> Mapping[str, Any]:
    members = await family_of(visit.mesh, session)
    return {
        "lanes": lanes_of(members, datetime.now(UTC)),
        "own_id": session.session_id,
        "is_cut": len(members) >= MAX_MEMBERS,
    }


def _back(session: Session, notice: str) -> Response:
    return see_other(f"/sessions/{session.session_id}", {"done": notice})
