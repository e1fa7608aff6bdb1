"""The page on which people sign in, and the steps that all ways to sign in share."""

from spawnmesh_client.client import Mesh
from spawnmesh_core.errors import MeshError
from starlette.responses import Response

from spawnmesh_console.clients.mesh import mesh_for
from spawnmesh_console.clients.session_pages import session_page
from spawnmesh_console.clients.tenants import tenant_page
from spawnmesh_console.web.dependencies import Dependencies
from spawnmesh_console.web.failures import HTTP_STATUS_OF
from spawnmesh_console.web.people import Person, TokenUnreadable
from spawnmesh_console.web.rendering import rendered
from spawnmesh_console.web.visit import see_other


def sign_in_page(
    deps: Dependencies, target: str, *, problem: str = "", status: int = 403, is_open: bool = False
) -> Response:
    """Return the page. With a problem, it has the status. If it `is_open`, the form for a token is
    shown beside the provider.
    """
    return rendered(
        deps.templates,
        "sign_in.html",
        status=status if problem else 200,
        person=None,
        path="/sign-in",
        target=target,
        problem=problem,
        is_open=is_open,
        provider=deps.provider.host if deps.provider is not None else "",
    )


async def signed_in_with(
    deps: Dependencies, token: str, target: str, *, is_from_provider: bool = False
) -> Response:
    """Return the answer that signs a person in, if a service of the mesh accepts the token; and
    otherwise the page with the problem.
    """
    is_open = not is_from_provider
    try:
        response = see_other(target)
        person = deps.cookie.sign_in(response, token)
        await _check(mesh_for(token, deps.connections, deps.settings.max_message_bytes), person)
    except TokenUnreadable as error:
        source = "The identity provider gave a token that the mesh cannot read: " if is_from_provider else ""
        return sign_in_page(deps, target, problem=f"{source}{error}", is_open=is_open)
    except MeshError as error:
        is_away = HTTP_STATUS_OF.get(error.status, 500) >= 500
        words = "A service of the mesh does not answer" if is_away else "The mesh does not accept the token"
        status = 503 if is_away else 403
        return sign_in_page(deps, target, problem=f"{words}: {error.message}", status=status, is_open=is_open)
    return response


def signed_in_at(deps: Dependencies, token: str, target: str) -> Response:
    """Return the answer that signs a person in. Raises TokenUnreadable."""
    response = see_other(target)
    deps.cookie.sign_in(response, token)
    return response


async def _check(mesh: Mesh, person: Person) -> None:
    """Make a call that each person of this kind may make. Raises MeshError."""
    await (tenant_page(mesh, page_size=1) if person.is_of_no_tenant else session_page(mesh, page_size=1))


def own_path(path: str) -> str:
    """Return the path to go to. One of another site becomes the first page."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_own and path.isprintable() else "/"
