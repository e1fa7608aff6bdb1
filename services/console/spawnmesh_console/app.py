"""Composition root: connections, the cookie, templates, and the pages by their paths."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spawnmesh_runtime.settings import address_parts
from starlette import convertors
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from spawnmesh_console.clients.mesh import open_connections
from spawnmesh_console.clients.oidc import CALLBACK_PATH, OidcProvider
from spawnmesh_console.clients.trace_backend import TraceBackend
from spawnmesh_console.pages import (
    agents,
    approvals,
    budgets,
    context,
    errors,
    models,
    oidc_sign_in,
    operations,
    plugins,
    published,
    schedules,
    session,
    session_files,
    session_live,
    sessions,
    sign_in,
    spend,
    start,
    storage,
    tenants,
    trace,
    webhooks,
)
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_console.web.attempt_cookie import AttemptCookie
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.guard import BodyTooLarge, BodyTooSlow, Guard
from spawnmesh_console.web.rendering import open_templates
from spawnmesh_console.web.session_cookie import SessionCookie, cookie_keys
from spawnmesh_console.web.visit import signed_in

_STATIC = Path(__file__).with_name("static")
_FORM_BYTES = 1024 * 1024  # The fields of a form besides its files.


class IntegerConvertor(convertors.IntegerConvertor):
    """A number in a path. Longer ones are no address: Python does not read thousands of digits."""

    regex = "[0-9]{1,18}"


convertors.register_url_convertor("int", IntegerConvertor())


class Assets(StaticFiles):
    """Files that a browser keeps, and asks about before each use: a release may change them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, or that it has not changed."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


ROUTES = (
    Route("/", signed_in(sessions.first_page, needs_tenant=False)),
    Route("/sessions", signed_in(sessions.list_sessions)),
    Route("/sessions/{session_id}", signed_in(session.show_session)),
    Route("/sessions/{session_id}/context", signed_in(context.show_context)),
    Route("/sessions/{session_id}/trace", signed_in(trace.show_trace)),
    Route("/sessions/{session_id}/live", signed_in(session_live.stream_session)),
    Route("/sessions/{session_id}/message", signed_in(session.send_message), methods=["POST"]),
    Route("/sessions/{session_id}/interrupt", signed_in(session.interrupt), methods=["POST"]),
    Route("/sessions/{session_id}/budget", signed_in(budgets.change_budget), methods=["POST"]),
    Route("/sessions/{session_id}/kill", signed_in(session.kill), methods=["POST"]),
    Route("/sessions/{session_id}/files/{place:int}", signed_in(session_files.download_file)),
    Route("/sessions/{session_id}/published", signed_in(published.list_published)),
    Route("/sessions/{session_id}/published/{set_id}", signed_in(published.show_set)),
    Route(
        "/sessions/{session_id}/published/{set_id}/files/{place:int}",
        signed_in(session_files.download_published),
    ),
    Route("/sessions/{session_id}/entries/{seq:int}/text", signed_in(session_files.show_text)),
    Route("/sessions/{session_id}/entries/{seq:int}/images/{place:int}", signed_in(session_files.show_image)),
    Route("/approvals", signed_in(approvals.list_approvals)),
    Route("/approvals/{approval_id}", signed_in(approvals.show_approval), methods=["GET"]),
    Route("/approvals/{approval_id}", signed_in(approvals.decide), methods=["POST"]),
    Route("/start", signed_in(start.show_form), methods=["GET"]),
    Route("/start", signed_in(start.spawn), methods=["POST"]),
    Route("/start/code", signed_in(start.show_code), methods=["POST"]),
    Route("/models", signed_in(models.show_models)),
    Route("/models/cooldowns", signed_in(models.clear), methods=["POST"]),
    Route("/spend", signed_in(spend.show_spend)),
    Route("/agents", signed_in(agents.list_agents)),
    Route("/agents/{agent_id}", signed_in(agents.show_agent)),
    Route("/plugins", signed_in(plugins.list_plugins)),
    Route("/plugins/{name}", signed_in(plugins.show_plugin)),
    Route("/plugins/{name}/pause", signed_in(plugins.pause), methods=["POST"]),
    Route("/plugins/{name}/resume", signed_in(plugins.resume), methods=["POST"]),
    Route("/webhooks", signed_in(webhooks.list_webhooks), methods=["GET"]),
    Route("/webhooks", signed_in(webhooks.create), methods=["POST"]),
    Route("/webhooks/{name}", signed_in(webhooks.show_webhook)),
    Route("/webhooks/{name}/change", signed_in(webhooks.change), methods=["POST"]),
    Route("/webhooks/{name}/pause", signed_in(webhooks.pause), methods=["POST"]),
    Route("/webhooks/{name}/resume", signed_in(webhooks.resume), methods=["POST"]),
    Route("/webhooks/{name}/test", signed_in(webhooks.send_test), methods=["POST"]),
    Route("/webhooks/{name}/rotate", signed_in(webhooks.rotate), methods=["POST"]),
    Route("/webhooks/{name}/replay", signed_in(webhooks.replay), methods=["POST"]),
    Route("/webhooks/{name}/delete", signed_in(webhooks.delete), methods=["POST"]),
    Route("/schedules", signed_in(schedules.list_schedules), methods=["GET"]),
    Route("/schedules", signed_in(schedules.create), methods=["POST"]),
    Route("/schedules/{name}", signed_in(schedules.show_schedule)),
    Route("/schedules/{name}/change", signed_in(schedules.change), methods=["POST"]),
    Route("/schedules/{name}/run", signed_in(schedules.run_now), methods=["POST"]),
    Route("/schedules/{name}/pause", signed_in(schedules.pause), methods=["POST"]),
    Route("/schedules/{name}/resume", signed_in(schedules.resume), methods=["POST"]),
    Route("/schedules/{name}/delete", signed_in(schedules.delete), methods=["POST"]),
    Route("/storage", signed_in(storage.list_transcripts)),
    Route("/storage/files", signed_in(storage.list_sets)),
    Route("/storage/transcripts/{session_id}/tier", signed_in(storage.tier), methods=["POST"]),
    Route("/storage/transcripts/{session_id}/revert", signed_in(storage.revert), methods=["POST"]),
    Route("/storage/transcripts/{session_id}/recount", signed_in(storage.recount), methods=["POST"]),
    Route("/storage/operations", signed_in(operations.list_operations)),
    Route("/storage/operations/{operation_id}", signed_in(operations.show_operation)),
    Route("/storage/operations/{operation_id}/confirm", signed_in(operations.confirm), methods=["POST"]),
    Route("/storage/operations/{operation_id}/cancel", signed_in(operations.cancel), methods=["POST"]),
    Route("/tenants", signed_in(tenants.list_tenants, needs_tenant=False)),
    Route("/tenants/{tenant_id}", signed_in(tenants.show_tenant, needs_tenant=False)),
    Route("/sign-in", sign_in.sign_in, methods=["GET"]),
    Route("/sign-in", sign_in.sign_in_with_token, methods=["POST"]),
    Route("/sign-in/oidc", oidc_sign_in.begin_sign_in),
    Route(CALLBACK_PATH, oidc_sign_in.end_sign_in),
    Route("/sign-out", signed_in(sign_in.sign_out, needs_tenant=False), methods=["POST"]),
    Mount("/static", Assets(directory=_STATIC)),
)
"""Each page by its path."""


@asynccontextmanager
async def open_app(settings: ConsoleSettings) -> AsyncIterator[ASGIApp]:
    """Connect to the mesh during the block, and yield the application."""
    async with open_connections(settings) as connections:
        app = Starlette(
            routes=ROUTES,
            middleware=[Middleware(GZipMiddleware, minimum_size=1024)],
            exception_handlers={
                BodyTooLarge: errors.too_large,
                BodyTooSlow: errors.too_slow,
                404: errors.not_found,
                HTTPException: errors.refused,
                Exception: errors.broken,
            },
        )
        # A redirect would have the scheme of the connection, which is not that of the browser.
        app.router.redirect_slashes = False
        keys = cookie_keys(settings.cookie_key_file)
        _, port = address_parts(settings.listen)
        app.state.dependencies = Dependencies(
            settings,
            connections,
            SessionCookie(keys, is_https=settings.is_https, port=port, issuers=settings.oidc_issuers),
            open_templates(),
            AttemptCookie(keys, is_https=settings.is_https, port=port),
            OidcProvider(settings) if settings.sign_in_issuer else None,
            TraceBackend(settings) if settings.traces_url else None,
        )
        # Around all of it, so that the answer to an error of a page has the headers, too.
        yield Guard(
            app,
            hosts=_hosts(settings),
            is_https=settings.is_https,
            max_body_bytes=settings.max_upload_bytes + _FORM_BYTES,
            too_large=errors.too_large,
        )


def _hosts(settings: ConsoleSettings) -> set[str]:
    """Return the names under which browsers may ask for pages, as browsers write them: in small
    letters, and without the port of the scheme.
    """
    if settings.public_url:
        names = {settings.public_url.partition("://")[2]}
    else:
        names = {settings.listen, f"localhost:{address_parts(settings.listen)[1]}"}
    return {name.lower().removesuffix(":443" if settings.is_https else ":80") for name in names}
