"""The pages for requests that no page answers, and for a page that broke."""

from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.rendering import rendered

log = structlog.get_logger()


async def not_found(request: Request, _error: Exception) -> Response:
    """Answer 404."""
    return _page(request, "not_found.html", 404)


async def refused(request: Request, error: Exception) -> Response:
    """Answer with the status of the error: a method that the page lacks, or a form that is none."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        problem = f"It takes no {request.method}, and nothing was changed."
        values = {"heading": "This address is no page", "problem": problem, "advice": "Go back."}
    else:
        advice = "Go back, change what the form has, and send it again."
        values = {"heading": "Nothing was changed", "problem": error.detail, "advice": advice}
    response = _page(request, "refused.html", error.status_code, **values)
    response.headers.update(error.headers or {})
    return response


async def too_large(request: Request, _error: Exception) -> Response:
    """Answer 413."""
    deps: Dependencies = request.app.state.dependencies
    return _page(request, "too_large.html", 413, max_bytes=deps.settings.max_upload_bytes)


async def too_slow(request: Request, _error: Exception) -> Response:
    """Answer 408, and close the connection: the rest of the body is not waited for."""
    response = _page(
        request,
        "refused.html",
        408,
        heading="Nothing was changed",
        problem="The form did not arrive in time.",
        advice="Go back, and send it again.",
    )
    response.headers["connection"] = "close"
    return response


async def broken(request: Request, error: Exception) -> Response:
    """Answer 500, and log where it happened.

    The server logs the error itself, and the person sees none of it.
    """
    log.error("page_broke", path=request.url.path, error=type(error).__name__)
    return _page(request, "broken.html", 500)


def _page(request: Request, template: str, status: int, **values: Any) -> Response:
    deps: Dependencies = request.app.state.dependencies
    person = deps.cookie.person_in(request.cookies)
    return rendered(deps.templates, template, status=status, person=person, path=request.url.path, **values)
