"""`/models`: the models that can be called, the health of providers, failed calls, and explained
routes.
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from spawnmesh_client.failures import first_hour
from spawnmesh_core.errors import FailedPrecondition, InvalidRequest
from starlette.responses import Response

from spawnmesh_console.clients.failed_calls import listed_failures
from spawnmesh_console.clients.model_router import clear_cooldown, explained_route, provider_views
from spawnmesh_console.domain.cooldown_lanes import cooldown_time_line
from spawnmesh_console.domain.cooldowns import model_state
from spawnmesh_console.domain.failed_calls import HOURS, failures_view
from spawnmesh_console.domain.routes import RouteQuestion, names_in, shown_candidates
from spawnmesh_console.web.visit import Visit, see_other

_MAX_TEXT = 4000


async def show_models(visit: Visit) -> Response:
    """Show models and providers, and the route of the request that the address describes.

    `part=state` returns the tables alone, and `part=route` the route, to keep them up to date.
    """
    part = visit.text("part")
    if part == "state":
        return visit.render("models_state.html", **await _state(visit))
    if part == "route":
        verdicts = await explained_route(visit.mesh, _question(visit))
        return visit.render("models_route.html", candidates=shown_candidates(verdicts))
    question = _question(visit)
    problem, candidates = "", None
    if "explain" in visit.request.query_params:
        try:
            candidates = shown_candidates(await explained_route(visit.mesh, question))
        except (InvalidRequest, FailedPrecondition) as error:
            problem = error.message
    begin = first_hour(HOURS)
    by_model, by_hour = await listed_failures(visit.mesh, begin)
    return visit.render(
        "models.html",
        status=400 if problem else 200,
        question=question,
        candidates=candidates,
        problem=problem,
        failures=failures_view(by_model, by_hour, begin),
        route_query=urlencode({**visit.request.query_params, "part": "route"}),
        **await _state(visit),
    )


async def clear(visit: Visit) -> Response:
    """End the cooldown that the form names, and show the models."""
    fields = await visit.form()
    scope, target, tenant_id = (str(fields.get(name, "")) for name in ("scope", "target", "tenant_id"))
    await clear_cooldown(visit.mesh, scope=scope, target=target, tenant_id=tenant_id)
    return see_other("/models")


async def _state(visit: Visit) -> dict[str, Any]:
    models = await visit.mesh.models.list()
    providers = await provider_views(visit.mesh)
    now = datetime.now(UTC)
    return {
        "models": models,
        "providers": providers,
        "time_line": cooldown_time_line(providers, now),
        "model_state": model_state,
        "explain_query": _explain_query,
        "now": now,
    }


def _explain_query(model: str) -> str:
    return urlencode({"explain": model})


def _question(visit: Visit) -> RouteQuestion:
    return RouteQuestion(
        model=visit.text("explain"),
        fallbacks=names_in(visit.text("fallbacks")),
        is_only_these=bool(visit.text("only")),
        has_tools=bool(visit.text("tools")),
        has_image=bool(visit.text("image")),
        text=visit.text("text")[:_MAX_TEXT],
    )
