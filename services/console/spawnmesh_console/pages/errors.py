"""The pages for an address that is none, and for a page that broke."""

import structlog
from starlette.requests import Request
from starlette.responses import Response

from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.rendering import rendered

log = structlog.get_logger()


async def not_found(request: Request, _error: Exception) -> Response:
    """Answer 404."""
    return _page(request, "not_found.html", 404)


async def broken(request: Request, error: Exception) -> Response:
    """Answer 500, and log where it happened.

    The server logs the error itself, and the person sees none of it.
    """
    log.error("page_broke", path=request.url.path, error=type(error).__name__)
    return _page(request, "broken.html", 500)


def _page(request: Request, template: str, status: int) -> Response:
    deps: Dependencies = request.app.state.dependencies
    person = deps.cookie.person_in(request.cookies)
    return rendered(deps.templates, template, status=status, person=person, path=request.url.path)
