"""`/sessions/{session_id}/trace`: the trace of a session as a waterfall."""

import asyncio
from functools import partial

from spawnmesh_client.session import Session
from starlette.responses import Response

from spawnmesh_console.clients.trace_backend import TraceUnavailable
from spawnmesh_console.domain.trace_problems import TraceProblem, words_for
from spawnmesh_console.domain.trace_view import MAX_ROWS, TraceView, trace_view
from spawnmesh_console.web.visit import Visit


async def show_trace(visit: Visit) -> Response:
    """Show the tenant's spans in the trace that the mesh names for the session. With
    `?spans=every`, spans that say little are among them.

    The address does not name the trace: a person sees the traces of readable sessions alone.
    """
    session = await visit.mesh.session(visit.path_part("session_id"))
    problem, view, is_whole = None, None, True
    try:
        view, is_whole = await _read(visit, session)
    except TraceUnavailable as error:
        problem = error.problem
    run = session.latest_run
    return visit.render(
        "trace.html",
        status=503 if problem is not None and problem.is_failure else 200,
        session=session,
        is_running=run is not None and not run.state.is_terminal,
        view=view,
        is_whole=is_whole,
        every_span=_wants_every_span(visit),
        problem=None if problem is None else words_for(problem),
        max_rows=MAX_ROWS,
    )


async def _read(visit: Visit, session: Session) -> tuple[TraceView, bool]:
    """Return the view, and whether the backend left nothing out. Raises TraceUnavailable."""
    if not session.trace_id:
        raise TraceUnavailable(TraceProblem.NO_TRACE)
    if visit.deps.traces is None:
        raise TraceUnavailable(TraceProblem.NOT_CONFIGURED)
    fetched = await visit.deps.traces.fetch(session.trace_id)
    draw = partial(
        trace_view,
        trace_id=session.trace_id,
        tenant_id=visit.person.tenant_id,
        every_span=_wants_every_span(visit),
    )
    view = await asyncio.to_thread(draw, fetched.spans)
    if view is None:
        raise TraceUnavailable(TraceProblem.NO_SPANS)
    return view, fetched.is_whole


def _wants_every_span(visit: Visit) -> bool:
    return visit.text("spans") == "every"
