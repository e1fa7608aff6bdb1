"""`/sessions/{session_id}`: one session with its family, files, events and transcript."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from spawnmesh_client.session import Session
from spawnmesh_client.views import Cleanup, EventKind, SessionEvent
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.status import Status
from starlette.responses import Response

from spawnmesh_console.clients.budgets import family_usage
from spawnmesh_console.clients.family import MAX_MEMBERS, family_of
from spawnmesh_console.clients.output_sets import OutputSetPage, output_set_page
from spawnmesh_console.clients.shown_entry import shown_entries
from spawnmesh_console.clients.transcript_pages import TranscriptPage, entries_from, newest_entries
from spawnmesh_console.domain.budgets import FamilyUsage, SentLimits
from spawnmesh_console.domain.event_sentences import EventSentence, event_sentence
from spawnmesh_console.domain.families import lanes_of
from spawnmesh_console.web.failures import HTTP_STATUS_OF
from spawnmesh_console.web.visit import Visit, see_other

T = TypeVar("T")

_NOTICES = {
    "sent": "The message was sent.",
    "interrupted": "The run stops at its next safe point.",
    "killed": "The session and its descendants were ended.",
    "budget": "The limits were changed. Runs that waited for room go on.",
}
_ENTRIES_BEFORE = 20  # Above the entry that a link names.
_LABELS_BEHIND = 20
_MAX_EVENTS = 100
_EVENTS_SECONDS = 5.0
_NO_FAMILY: Mapping[str, Any] = {"lanes": [], "own_id": "", "is_cut": False}
_NOTHING_PUBLISHED = OutputSetPage([], "")
_NO_USAGE = FamilyUsage()
_UNCERTAIN = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
_REFUSED = (
    Status.INVALID_ARGUMENT,
    Status.FAILED_PRECONDITION,
    Status.RESOURCE_EXHAUSTED,
    Status.ABORTED,
)


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """The newest events. Without `may_publish`, it is certain that none of the session's events is
    a publication of files.
    """

    shown: list[EventSentence]
    may_publish: bool


async def show_session(visit: Visit) -> Response:
    """Show the session. `at` begins the transcript at an entry, and `before` ends it there.

    `part=family` returns the family alone, `part=published` the published files, and `part=usage`
    the budgets, for the page that keeps them up to date.
    """
    session = await visit.mesh.session(visit.path_part("session_id"))
    match visit.text("part"):
        case "family":
            return visit.render("session_family.html", **await _family(visit, session))
        case "published":
            page = await output_set_page(visit.mesh, session.session_id)
            return visit.render("session_published.html", session=session, published=page)
        case "usage":
            usage = await family_usage(visit.mesh, session.session_id)
            return visit.render("session_usage.html", usage=usage, sent_limits=None, **head_values(session))
        case _:
            return await session_page(visit, session)


async def send_message(visit: Visit) -> Response:
    """Send the message of the form: for the next turn, or instead of the rest of this one.

    A text that was not taken, or perhaps not, stays in the form under the same request id: sent
    again, it is taken once.
    """
    fields = await visit.form()
    session = await visit.mesh.session(visit.path_part("session_id"))
    text, request_id = str(fields.get("text", "")), str(fields.get("request_id", ""))
    try:
        if fields.get("steer"):
            await session.interrupt(text, request_id=request_id or None)
        else:
            await session.send(text, request_id=request_id or None)
    except MeshError as error:
        if error.status in _UNCERTAIN:
            problem = f"{error.message}. Send the message again: it is taken once."
        elif error.status in _REFUSED:
            problem = error.message
        else:
            raise
        status = HTTP_STATUS_OF[error.status]
        return await session_page(
            visit, session, status=status, problem=problem, text=text, request_id=request_id
        )
    return _back(session, "sent")


async def interrupt(visit: Visit) -> Response:
    """Stop the live run, and leave the session open."""
    fields = await visit.form()
    session = await visit.mesh.session(visit.path_part("session_id"))
    await session.interrupt(run_id=str(fields.get("run_id", "")))
    return _back(session, "interrupted")


async def kill(visit: Visit) -> Response:
    """End the session and its descendants."""
    await visit.form()
    session = await visit.mesh.session(visit.path_part("session_id"))
    await session.kill()
    return _back(session, "killed")


async def session_page(
    visit: Visit,
    session: Session,
    *,
    status: int = 200,
    problem: str = "",
    text: str = "",
    request_id: str = "",
    sent_limits: SentLimits | None = None,
) -> Response:
    """Return the page of the session. A part that cannot be read is missing, with a sentence that
    says why. What was sent with a form that was refused stays in it.
    """
    problems = [problem] if problem else []
    page, events, family, usage = await asyncio.gather(
        _or(TranscriptPage([], 0), _transcript(visit, session), problems),
        _or(NewestEvents([], may_publish=True), _events(session), problems),
        _or(_NO_FAMILY, _family(visit, session), problems),
        _or(_NO_USAGE, family_usage(visit.mesh, session.session_id), problems),
    )
    later, published = await asyncio.gather(
        _or(TranscriptPage([], 0), _later(visit, session, page), problems),
        # Behind the events: the stream has those of all sets that are not on the page.
        _or(_NOTHING_PUBLISHED, _published(visit, session, events), problems),
    )
    # Behind the events: what ended between the two reads is in the head, too.
    session = await session.refresh()
    is_live = page.is_newest and not session.state.is_terminal
    after = f"after_event={events.shown[-1].number if events.shown else 0}&after_seq={page.last_seq}"
    return visit.render(
        "session.html",
        status=status,
        entries=shown_entries(page.entries, later.entries),
        page=page,
        later_seq=page.last_seq + _ENTRIES_BEFORE + 1,
        events=events.shown,
        published=published,
        live_query=after if is_live else "",
        notice=_NOTICES.get(visit.text("done"), ""),
        problems=problems,
        text=text,
        request_id=request_id or uuid4().hex,
        usage=usage,
        sent_limits=sent_limits,
        **head_values(session),
        **family,
    )


def head_values(session: Session) -> dict[str, Any]:
    """Return the values of the head of the page, which changes with each event."""
    is_kept = session.cleanup is Cleanup.KEEP or not session.state.is_terminal
    return {"session": session, "run": session.latest_run, "files_are_kept": is_kept}


def event_sentence_of(event: SessionEvent) -> EventSentence:
    """Return the event in a sentence."""
    state = event.run_state.value if event.run_state is not None else ""
    return event_sentence(
        event.number,
        event.event_time,
        event.kind.value,
        state,
        event.detail,
        event.child_session_id,
        event.set_id,
    )


async def _or(missing: T, part: Awaitable[T], problems: list[str]) -> T:
    """Return the part of the page. If it cannot be read, return what stands for it, and say why."""
    try:
        return await part
    except MeshError as error:
        problems.append(f"A part of this page is missing: {error.message}.")
        return missing


async def _transcript(visit: Visit, session: Session) -> TranscriptPage:
    if at := visit.number("at"):
        page = await entries_from(visit.mesh, session.session_id, at - _ENTRIES_BEFORE)
        if page.entries:
            return page
    return await newest_entries(visit.mesh, session.session_id, before_seq=visit.number("before"))


async def _later(visit: Visit, session: Session, page: TranscriptPage) -> TranscriptPage:
    """Return the first entries behind an old page: labels among them are about its last entries."""
    if page.is_newest:
        return TranscriptPage([], 0)
    return await entries_from(visit.mesh, session.session_id, page.last_seq + 1, page_size=_LABELS_BEHIND)


async def _events(session: Session) -> NewestEvents:
    """Return the newest events, as far as they can be read in a few seconds. The stream of the page
    has those that follow.
    """
    newest: deque[SessionEvent] = deque(maxlen=_MAX_EVENTS)
    next_number, may_publish = 1, False
    try:
        async with asyncio.timeout(_EVENTS_SECONDS):
            async for event in session.events(wait=False):
                # An old event may have been removed, which leaves a gap.
                may_publish |= event.kind is EventKind.FILES_PUBLISHED or event.number != next_number
                next_number = event.number + 1
                newest.append(event)
    except TimeoutError:
        if not newest:
            raise unavailable("session") from None
        may_publish = True
    return NewestEvents([event_sentence_of(event) for event in newest], may_publish)


async def _published(visit: Visit, session: Session, events: NewestEvents) -> OutputSetPage:
    """Return the published files. Without any, no service is called to find that out."""
    run = session.latest_run
    if events.may_publish or (run is not None and run.output_file_count):
        return await output_set_page(visit.mesh, session.session_id)
    return _NOTHING_PUBLISHED


async def _family(visit: Visit, session: Session) -> Mapping[str, Any]:
    members = await family_of(visit.mesh, session)
    return {
        "lanes": lanes_of(members[:MAX_MEMBERS], datetime.now(UTC)),
        "own_id": session.session_id,
        "is_cut": len(members) > MAX_MEMBERS,
    }


def _back(session: Session, notice: str) -> Response:
    return see_other(f"/sessions/{session.session_id}", {"done": notice})
