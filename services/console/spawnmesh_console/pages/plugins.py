"""`/plugins` and `/plugins/{name}`: plugins with their newest calls, to pause and to resume."""

from typing import Any
from urllib.parse import quote, urlencode

from spawnmesh_core.errors import AlreadyExists, FailedPrecondition, InvalidRequest, MeshError
from starlette.responses import Response

from spawnmesh_console.clients.plugin_deliveries import DeliveryPage, delivery_page
from spawnmesh_console.domain import plugins as words
from spawnmesh_console.web.failures import HTTP_STATUS_OF
from spawnmesh_console.web.visit import Visit, see_other


async def list_plugins(visit: Visit) -> Response:
    """Show the plugins in the order in which they are called."""
    return visit.render("plugins.html", plugins=await visit.mesh.plugins.list(), words=words)


async def show_plugin(visit: Visit) -> Response:
    """Show one plugin. `part=deliveries` returns its calls alone, to keep them up to date."""
    return await _page(visit)


async def pause(visit: Visit) -> Response:
    """Pause the plugin, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.plugins.pause)


async def resume(visit: Visit) -> Response:
    """Resume the plugin, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.plugins.resume)


async def _changed(visit: Visit, change: Any) -> Response:
    name = visit.path_part("name")
    try:
        await change(name)
    except (AlreadyExists, FailedPrecondition) as error:
        return await _page(visit, refusal=error)
    return see_other(f"/plugins/{quote(name, safe='')}")


async def _page(visit: Visit, *, refusal: MeshError | None = None) -> Response:
    name = visit.path_part("name")
    decision = visit.text("decision") if visit.text("decision") in words.DECISIONS else ""
    token = visit.text("page_token")
    problem, page = "", DeliveryPage([], "")
    try:
        page = await delivery_page(visit.mesh, name, decision=decision, page_token=token)
    except InvalidRequest as error:
        problem = error.message
    chosen = {"decision": decision} if decision else {}
    values: dict[str, Any] = {
        "name": name,
        "decision": decision,
        "page": page,
        "problem": problem,
        "words": words,
        "is_first": not token,
        "newest_query": urlencode(chosen),
        "next_query": urlencode({**chosen, "page_token": page.next_page_token}),
        "rows_query": urlencode({**chosen, "part": "deliveries"}),
    }
    if visit.text("part") == "deliveries":
        return visit.render("plugin_deliveries.html", **values)
    status = 400 if problem else 200
    if refusal is not None:
        status = HTTP_STATUS_OF.get(refusal.status, 500)
    return visit.render(
        "plugin.html",
        status=status,
        plugin=await visit.mesh.plugins.get(name),
        refusal="" if refusal is None else refusal.message,
        **values,
    )
