"""Browsers of people, as far as HTTP goes, and tenants with tokens for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2
from spawnmesh_client.client import Mesh, connect
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.console.html import Page, read_html
from tests.support.console.running_console import RunningConsole
from tests.support.mesh.new_tenant import new_tenant

SignedIn = Callable[..., Awaitable[httpx2.AsyncClient]]
"""`await signed_in(role or token)` returns the browser of a person who has signed in."""
_TOKEN_SECONDS = 3_600.0
_HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
_PATIENCE = httpx2.Timeout(60.0)


@dataclass(frozen=True)
class ConsoleTenant:
    """A tenant of a test. `mesh` makes calls as an operator of it."""

    console: RunningConsole = field(repr=False)
    tenant_id: str
    mesh: Mesh = field(repr=False)

    def token(
        self,
        role: ClientRole | None = ClientRole.OPERATOR,
        *,
        subject: str = "ada",
        seconds: float = _TOKEN_SECONDS,
    ) -> str:
        """Return a token of a person of the tenant."""
        minter = TokenMinter("client", self.console.stack.keys / "client.pem")
        return minter.client_token(self.tenant_id, subject, seconds, role=role)


@asynccontextmanager
async def open_tenant(console: RunningConsole) -> AsyncIterator[ConsoleTenant]:
    """Create a tenant, and connect to the mesh as an operator of it."""
    tenant_id = await new_tenant(console.stack)
    token = console.stack.client_token(tenant_id)
    async with connect(targets=console.stack.targets, token=token) as mesh:
        yield ConsoleTenant(console, tenant_id, mesh)


@asynccontextmanager
async def operator_of_the_mesh(console: RunningConsole) -> AsyncIterator[Mesh]:
    """Connect to the mesh as one of its operators."""
    async with connect(targets=console.stack.targets, token=console.stack.admin_token()) as mesh:
        yield mesh


def stranger(console: RunningConsole) -> httpx2.AsyncClient:
    """Return the browser of a person who has not signed in. It follows no redirects.

    As a browser does, it says of each form which page has sent it; headers of a request that are
    given win.
    """

    async def say_the_site(request: httpx2.Request) -> None:
        if request.method not in ("GET", "HEAD"):
            request.headers.setdefault("origin", console.base_url)
            request.headers.setdefault("sec-fetch-site", "same-origin")

    return httpx2.AsyncClient(
        base_url=console.base_url,
        headers={"accept": _HTML},
        event_hooks={"request": [say_the_site]},
        timeout=_PATIENCE,
        trust_env=False,
    )


async def sign_in(client: httpx2.AsyncClient, token: str) -> None:
    """Sign the person in with a token."""
    answer = await client.post("/sign-in", data={"token": token})
    assert answer.status_code == 303, read_html(answer.text).text
    assert client.cookies, "a sign-in sets a cookie"


async def read(client: httpx2.AsyncClient, path: str, *, status: int = 200) -> Page:
    """Return the page at the path. Redirects of the console are followed."""
    answer = await client.get(path, follow_redirects=True)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:2000]}"
    return read_html(answer.text)


async def form_key(client: httpx2.AsyncClient, path: str = "/sessions") -> str:
    """Return the key that forms of the page have: that of the form to sign out."""
    return (await read(client, path)).form("/sign-out").fields["form_key"]
