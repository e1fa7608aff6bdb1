"""Composition root: connections, the cookie, templates, and the pages by their paths."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spawnmesh_runtime.settings import address_parts
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from spawnmesh_console.clients.mesh import open_connections
from spawnmesh_console.pages import sessions, sign_in
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.guard import Guard
from spawnmesh_console.web.rendering import open_templates
from spawnmesh_console.web.session_cookie import SessionCookie, cookie_keys
from spawnmesh_console.web.visit import signed_in

_STATIC = Path(__file__).with_name("static")
_FORM_BYTES = 1024 * 1024  # The fields of a form besides its files.

ROUTES = (
    Route("/", signed_in(sessions.first_page)),
    Route("/sessions", signed_in(sessions.list_sessions)),
    Route("/sign-in", sign_in.sign_in, methods=["GET"]),
    Route("/sign-in", sign_in.sign_in_with_token, methods=["POST"]),
    Route("/sign-out", signed_in(sign_in.sign_out), methods=["POST"]),
    Mount("/static", StaticFiles(directory=_STATIC)),
)
"""Each page by its path."""


@asynccontextmanager
async def open_app(settings: ConsoleSettings) -> AsyncIterator[Starlette]:
    """Connect to the mesh during the block, and yield the application."""
    async with open_connections(settings) as connections:
        app = Starlette(
            routes=ROUTES,
            middleware=[
                Middleware(
                    Guard,
                    hosts=_hosts(settings),
                    is_https=settings.is_https,
                    max_body_bytes=settings.max_upload_bytes + _FORM_BYTES,
                ),
                Middleware(GZipMiddleware, minimum_size=1024),
            ],
        )
        cookie = SessionCookie(cookie_keys(settings.cookie_key_file), is_https=settings.is_https)
        app.state.dependencies = Dependencies(settings, connections, cookie, open_templates())
        yield app


def _hosts(settings: ConsoleSettings) -> set[str]:
    """Return the names under which browsers may ask for pages."""
    if settings.public_url:
        return {settings.public_url.partition("://")[2]}
    _, port = address_parts(settings.listen)
    return {settings.listen, f"localhost:{port}"}
