"""`/spend`: what the tenant's model calls cost, against its budget, by day, agent and model."""

from urllib.parse import urlencode

from spawnmesh_client.spending import first_day
from starlette.responses import Response

from spawnmesh_console.clients.spending import listed_spending, listed_today
from spawnmesh_console.domain.spending import SPANS, spend_view, today_view
from spawnmesh_console.web.visit import Visit


async def show_spend(visit: Visit) -> Response:
    """Show the spending of the last 7, 30 or 90 days, and today's budget. `part=today` returns the
    latter alone, to keep it up to date.
    """
    if visit.text("part") == "today":
        listed = await listed_today(visit.mesh, first_day(1))
        return visit.render("spend_today.html", today=today_view(listed))
    wanted = visit.number("days")
    days = wanted if wanted in SPANS else SPANS[0]
    begin = first_day(days)
    listed = await listed_spending(visit.mesh, begin)
    view = spend_view(listed, begin.date(), first_day(1).date())
    return visit.render(
        "spend.html",
        view=view,
        today=view.today,
        models={one.model for one in await visit.mesh.models.list()},
        chosen=days,
        spans=SPANS,
        sessions_query=_sessions_query,
        explain_query=_explain_query,
    )


def _sessions_query(agent_id: str) -> str:
    return urlencode({"agent": agent_id})


def _explain_query(model: str) -> str:
    return urlencode({"explain": model})
