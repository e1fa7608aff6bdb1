"""`/sessions`: the sessions of the tenant, newest first, and `/`, which leads to them."""

from typing import Any
from urllib.parse import urlencode

from spawnmesh_core.errors import InvalidRequest, MeshError
from starlette.responses import Response

from spawnmesh_console.clients.session_pages import SessionPage, session_page
from spawnmesh_console.domain.session_filters import ChosenFilter
from spawnmesh_console.web.visit import Visit, see_other


async def first_page(visit: Visit) -> Response:
    """Lead to the sessions; in an empty mesh to the page that says how to spawn the first one; an
    operator of the mesh to the tenants.
    """
    if visit.person.is_of_no_tenant:
        return see_other("/tenants")
    found = await session_page(visit.mesh, page_size=1)
    return see_other("/sessions" if found.sessions or found.next_page_token else "/start")


async def list_sessions(visit: Visit) -> Response:
    """Show a page of the list. `part=rows` returns the rows alone, for the page that keeps them
    up to date.
    """
    chosen = ChosenFilter(
        state=visit.text("state"),
        agent=visit.text("agent"),
        label=visit.text("label"),
        reason=visit.text("reason"),
        since=visit.text("since"),
        expression=visit.text("expression"),
    )
    token = visit.text("page_token")
    problem, page = "", SessionPage([], "")
    try:
        page = await session_page(visit.mesh, filter=chosen.text(), page_token=token)
    except InvalidRequest as error:
        problem = error.message
    values: dict[str, Any] = {
        "chosen": chosen,
        "page": page,
        "problem": problem,
        "next_query": urlencode({**chosen.query(), "page_token": page.next_page_token}),
        "rows_query": urlencode({**chosen.query(), "page_token": token, "part": "rows"}),
        "is_first": not token,
    }
    if visit.text("part") == "rows":
        return visit.render("sessions_rows.html", **values)
    return visit.render(
        "sessions.html", agents=await _agents(visit), status=400 if problem else 200, **values
    )


async def _agents(visit: Visit) -> list[str]:
    """Return the ids of the agents to choose from; none if they cannot be read."""
    try:
        return [agent.agent_id for agent in await visit.mesh.wire.agents()]
    except MeshError:
        return []
