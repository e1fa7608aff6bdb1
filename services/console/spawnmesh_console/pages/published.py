"""`/sessions/{session_id}/published`: the files that the runs of a session have published."""

from starlette.responses import Response

from spawnmesh_console.clients.output_sets import output_set, output_set_page
from spawnmesh_console.web.visit import Visit


async def list_published(visit: Visit) -> Response:
    """Show a page of the sets, oldest first, each with its first files."""
    session = await visit.mesh.session(visit.path_part("session_id"))
    page_token = visit.text("page_token")
    page = await output_set_page(visit.mesh, session.session_id, page_token=page_token)
    return visit.render("published.html", session=session, published=page, is_first=not page_token)


async def show_set(visit: Visit) -> Response:
    """Show one set. `from` is the place of the first file on the page."""
    path = visit.request.path_params
    session = await visit.mesh.session(path["session_id"])
    shown = await output_set(visit.mesh, session.session_id, path["set_id"], first_place=visit.number("from"))
    return visit.render("published_set.html", session=session, shown=shown)
