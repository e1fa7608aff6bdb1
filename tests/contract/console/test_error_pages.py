"""What a person sees where there is no page, and while services are away."""

from contextlib import AsyncExitStack

import httpx2
import pytest
from spawnmesh_console.app import ROUTES, open_app
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_devstack.stack import Stack

from tests.support.console.running_console import start_console
from tests.support.console.said import ended_session
from tests.support.console.visitors import ConsoleTenant, SignedIn, read, sign_in, stranger


async def test_address_that_is_none_leads_back(signed_in: SignedIn, visitor: httpx2.AsyncClient) -> None:
    page = await read(await signed_in(), "/nothing/here", status=404)
    assert "There is no such page" in page.text
    assert "/sessions" in page.links
    assert "There is no such page" in (await read(visitor, "/nothing/here", status=404)).text


async def test_page_says_which_service_is_away(
    stack: Stack, tenant: ConsoleTenant, visitors: AsyncExitStack
) -> None:
    session = await ended_session(tenant.mesh)
    lonely = await start_console(
        stack, stack.data_dir / "console-lonely", "console-lonely", {"TRANSCRIPT_TARGET": "127.0.0.1:9"}
    )
    client = await visitors.enter_async_context(stranger(lonely))
    await sign_in(client, tenant.token())
    page = await read(client, f"/sessions/{session.session_id}", status=503)
    assert "transcript" in page.text
    assert "Nothing was lost: try again in a moment." in page.text
    assert session.session_id in (await read(client, "/sessions")).text, "other pages work"


async def test_page_that_breaks_says_so_and_shows_nothing_of_the_error(
    signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of the application in this process is made to break."""
    settings = ConsoleSettings(
        listen="127.0.0.1:1",
        session_target="127.0.0.1:9",
        transcript_target="127.0.0.1:9",
        model_router_target="127.0.0.1:9",
        attachment_blob_target="127.0.0.1:9",
        hook_target="127.0.0.1:9",
    )

    async def broken(scope: object, receive: object, send: object) -> None:
        raise RuntimeError("a secret of the program")

    [route] = [
        route for route in ROUTES if getattr(route, "path", "") == "/sign-in" and "GET" in route.methods
    ]  # type: ignore[attr-defined]
    monkeypatch.setattr(route, "app", broken)
    async with open_app(settings) as app:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            answer = await client.get("/sign-in")
    assert answer.status_code == 500
    assert "This page broke" in answer.text
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
