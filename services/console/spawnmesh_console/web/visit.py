"""A request of a person who has signed in, and the pages that answer such requests."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import structlog
from spawnmesh_client.client import Mesh
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match

from spawnmesh_console.clients.mesh import mesh_for
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.failures import HTTP_STATUS_OF, advice_for, heading_for
from spawnmesh_console.web.form_key import is_masked
from spawnmesh_console.web.guard import BodyTooLarge
from spawnmesh_console.web.people import Person
from spawnmesh_console.web.rendering import rendered

log = structlog.get_logger()

_MAX_FORM_FIELDS = 200
_MAX_FIELD_BYTES = 2 * 1024 * 1024  # A task of 1 MiB has room, also where it is written with escapes.
_ENDED = "Your sign-in has ended, and nothing was sent. Sign in, and send it again."
_MAX_DIGITS = 15
_NO_TENANT = {
    "heading": "This page is about one tenant",
    "problem": "Your token is that of an operator of the mesh. It reads no content of a tenant.",
    "advice": "Sign in with a token of the tenant, such as the command spawnmesh --tenant acme token makes.",
}


class FormRefused(Exception):
    """The form is not from a page of this person."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a person. `mesh` makes calls with the person's token."""

    request: Request
    person: Person
    mesh: Mesh
    deps: Dependencies

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        return rendered(
            self.deps.templates,
            template,
            status=status,
            person=self.person,
            path=self.request.url.path,
            **values,
        )

    async def form(self) -> FormData:
        """Return the fields of the form that was sent. Raises FormRefused, and BodyTooLarge."""
        fields = await self.request.form(max_fields=_MAX_FORM_FIELDS, max_part_size=_MAX_FIELD_BYTES)
        key = fields.get("form_key")
        if not isinstance(key, str) or not is_masked(key, self.person.form_key):
            raise FormRefused
        return fields

    def path_part(self, name: str) -> str:
        """Return the part of the path that its route has under this name."""
        part: str = self.request.path_params[name]
        return part

    def text(self, name: str) -> str:
        """Return a parameter of the address; empty without one."""
        return self.request.query_params.get(name, "").strip()

    def number(self, name: str) -> int:
        """Return a parameter of the address that is a natural number; 0 for anything else."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def field_text(fields: FormData, name: str) -> str:
    """Return the text of a field of a form; empty without one, and for a file."""
    value = fields.get(name)
    return value.strip() if isinstance(value, str) else ""


Page = Callable[[Visit], Awaitable[Response]]


def signed_in(page: Page, *, needs_tenant: bool = True) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that serves the page to people who have signed in, and sends others to
    the sign-in. A refusal of the mesh becomes a page that says what to do.

    A page that `needs_tenant` is refused to operators of the mesh, whose tokens name none.
    """

    async def endpoint(request: Request) -> Response:
        deps: Dependencies = request.app.state.dependencies
        person = deps.cookie.person_in(request.cookies)
        if person is None:
            return _to_sign_in(request)
        mesh = mesh_for(person.token, deps.connections, deps.settings.max_message_bytes)
        visit = Visit(request, person, mesh, deps)
        if needs_tenant and person.is_of_no_tenant:
            return visit.render("refused.html", status=403, **_NO_TENANT)
        try:
            return await page(visit)
        except MeshError as error:
            return _refused(visit, error)
        except FormRefused:
            return visit.render("form_refused.html", status=403)
        except BodyTooLarge:
            return visit.render("too_large.html", status=413, max_bytes=deps.settings.max_upload_bytes)

    return endpoint


def see_other(path: str, query: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a form that was done: the browser goes to the path of the console."""
    return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)


def _to_sign_in(request: Request) -> Response:
    accepted = {one.partition(";")[0].strip() for one in request.headers.get("accept", "").split(",")}
    if request.method == "HEAD" or "text/html" not in accepted:
        # A script gets no other page in place of the part that it asked for.
        return Response("Sign in first.\n", 401, media_type="text/plain")
    if request.method != "GET":
        return _nothing_sent(request)
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/sign-in?next={quote(request.url.path + query, safe='')}", 303)


def _nothing_sent(request: Request) -> Response:
    """Return the sign-in page, which leads to the page of the form that was sent."""
    deps: Dependencies = request.app.state.dependencies
    return rendered(
        deps.templates,
        "sign_in.html",
        status=401,
        person=None,
        path="/sign-in",
        target=_page_of_form(request),
        problem=_ENDED,
        is_open=False,
        provider=deps.provider.host if deps.provider is not None else "",
    )


def _page_of_form(request: Request) -> str:
    """Return the path of the nearest page at or above the path of a form."""
    path: str = request.scope["path"]
    while path:
        scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            return quote(path)
        path = path.rpartition("/")[0]
    return "/"


def _refused(visit: Visit, error: MeshError) -> Response:
    if error.status is Status.UNAUTHENTICATED:
        response = _to_sign_in(visit.request)
        visit.deps.cookie.sign_out(response)
        return response
    log.info("page_refused", path=visit.request.url.path, reason=error.reason.value)
    return visit.render(
        "refused.html",
        status=HTTP_STATUS_OF.get(error.status, 500),
        error=error,
        heading=heading_for(error),
        advice=advice_for(error, is_change=visit.request.method != "GET"),
    )
