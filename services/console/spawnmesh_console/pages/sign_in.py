"""`/sign-in` and `/sign-out`: a token, or the one-time link of a mesh on one machine."""

from spawnmesh_core.errors import MeshError
from starlette.requests import Request
from starlette.responses import Response

from spawnmesh_console.clients.mesh import mesh_for
from spawnmesh_console.clients.session_pages import session_page
from spawnmesh_console.clients.sign_in_file import take_token
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.people import TokenUnreadable
from spawnmesh_console.web.rendering import rendered
from spawnmesh_console.web.visit import Visit, see_other

_USED = "This link was used, or is not the newest one. `spawnmesh console` prints another."


async def sign_in(request: Request) -> Response:
    """Ask for a token. A link with the right code signs in at once."""
    deps: Dependencies = request.app.state.dependencies
    target = _target(request.query_params.get("next", ""))
    code, file = request.query_params.get("code"), deps.settings.sign_in_file
    if not code:
        return _form(deps, target)
    token = None if file is None else take_token(file, code)
    return _form(deps, target, problem=_USED) if token is None else _signed_in(deps, token, target)


async def sign_in_with_token(request: Request) -> Response:
    """Sign in with the token of the form, if a service of the mesh accepts it."""
    deps: Dependencies = request.app.state.dependencies
    fields = await request.form()
    target, token = _target(str(fields.get("next", ""))), str(fields.get("token", "")).strip()
    try:
        mesh = mesh_for(token, deps.connections, deps.settings.max_message_bytes)
        response = _signed_in(deps, token, target)
        await session_page(mesh, page_size=1)
    except TokenUnreadable as error:
        return _form(deps, target, problem=str(error))
    except MeshError as error:
        return _form(deps, target, problem=f"The mesh does not accept the token: {error.message}")
    return response


async def sign_out(visit: Visit) -> Response:
    """Delete the cookie. The token stays valid: `spawnmesh token revoke` ends it."""
    await visit.form()
    response = see_other("/sign-in")
    visit.deps.cookie.sign_out(response)
    return response


def _signed_in(deps: Dependencies, token: str, target: str) -> Response:
    response = see_other(target)
    deps.cookie.sign_in(response, token)
    return response


def _form(deps: Dependencies, target: str, *, problem: str = "") -> Response:
    return rendered(
        deps.templates,
        "sign_in.html",
        status=403 if problem else 200,
        person=None,
        path="/sign-in",
        target=target,
        problem=problem,
    )


def _target(path: str) -> str:
    """Return the path to go to. One of another site becomes the first page."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_own and path.isprintable() else "/"
