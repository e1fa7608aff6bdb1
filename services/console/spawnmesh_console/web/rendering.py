"""Templates, and the words that they use for times, sizes and texts."""

from datetime import UTC, datetime, timedelta
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from spawnmesh_console.domain.amounts import aligned_cost, size_text
from spawnmesh_console.domain.budget_limits import short_money
from spawnmesh_console.domain.shown_text import beginning, clipped, harmless
from spawnmesh_console.domain.spans_of_time import age, fine_span, span
from spawnmesh_console.domain.states import run_state, session_state
from spawnmesh_console.web.form_key import masked
from spawnmesh_console.web.navigation import pages_of, way_back


def open_templates() -> Environment:
    """Return the templates. Values are escaped, and a name without a value is an error."""
    templates = Environment(
        loader=PackageLoader("spawnmesh_console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        ago=_ago,
        took=_took,
        size=size_text,
        count=_count,
        money=short_money,
        aligned_cost=aligned_cost,
        fine_span=fine_span,
        harmless=harmless,
        beginning=beginning,
        clipped=clipped,
    )
    templates.globals.update(
        run_state=run_state,
        session_state=session_state,
        masked=masked,
        server_time=_server_time,
        pages_of=pages_of,
        way_back=way_back,
    )
    return templates


def rendered(templates: Environment, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return the response with the page."""
    return HTMLResponse(templates.get_template(template).render(values), status)


def _server_time() -> str:
    """Return the time of the server, by which scripts keep relative times true."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _ago(time: datetime | None) -> Markup:
    """Return the time relative to now; the exact time is shown on hover. Scripts keep it true."""
    if time is None:
        return Markup("<span class=none>–</span>")
    exact = time.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(timespec="milliseconds"),
        f"{exact:%Y-%m-%d %H:%M:%S} UTC",
        age(exact, datetime.now(UTC)),
    )


def _took(begin: datetime | None, end: datetime | None = None) -> Markup:
    """Return the time between two times; without an end, until now."""
    if begin is None:
        return Markup("<span class=none>–</span>")
    took: timedelta = (end or datetime.now(UTC)) - begin
    return escape(span(took.total_seconds()))


def _count(number: int) -> str:
    return f"{number:,}"
