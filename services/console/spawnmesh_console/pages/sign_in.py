"""`/sign-in` and `/sign-out`: a token, or the one-time link of a mesh on one machine."""

from starlette.requests import Request
from starlette.responses import Response

from spawnmesh_console.clients.sign_in_file import take_token
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.guard import BodyTooLarge, bounded
from spawnmesh_console.web.people import TokenUnreadable
from spawnmesh_console.web.sign_in_page import own_path, sign_in_page, signed_in_at, signed_in_with
from spawnmesh_console.web.visit import Visit, see_other

_MAX_FORM_BYTES, _MAX_FORM_FIELDS = 64 * 1024, 10
_TOO_LONG = "This is too long for a token."
_USED = "This link was used, or is not the newest one. `spawnmesh console` prints another."


async def sign_in(request: Request) -> Response:
    """Ask for a token. A link with the right code signs in at once."""
    deps: Dependencies = request.app.state.dependencies
    target = own_path(request.query_params.get("next", ""))
    code, file = request.query_params.get("code"), deps.settings.sign_in_file
    if not code or request.method != "GET":  # A program that looks at a link does not use it.
        return sign_in_page(deps, target)
    token = None if file is None else take_token(file, code)
    if token is None:
        return sign_in_page(deps, target, problem=_USED)
    try:
        return signed_in_at(deps, token, target)
    except TokenUnreadable as error:
        return sign_in_page(deps, target, problem=f"The link has no usable token: {error}")


async def sign_in_with_token(request: Request) -> Response:
    """Sign in with the token of the form, if a service of the mesh accepts it."""
    deps: Dependencies = request.app.state.dependencies
    # Any program can send this form: no more of it is read than a token needs.
    small = Request(request.scope, bounded(request.receive, _MAX_FORM_BYTES))
    try:
        fields = await small.form(max_files=0, max_fields=_MAX_FORM_FIELDS)
    except BodyTooLarge:
        return sign_in_page(deps, "/", problem=_TOO_LONG, status=413)
    target, token = own_path(str(fields.get("next", ""))), str(fields.get("token", "")).strip()
    return await signed_in_with(deps, token, target)


async def sign_out(visit: Visit) -> Response:
    """Delete the cookie. The token stays valid: `spawnmesh token revoke` ends it."""
    await visit.form()
    response = see_other("/sign-in")
    visit.deps.cookie.sign_out(response)
    return response
