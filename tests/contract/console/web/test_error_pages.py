"""The pages for addresses that are none, and for services that are away."""

from contextlib import AsyncExitStack

import httpx2
import pytest
from spawnmesh_console.app import ROUTES, open_app
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_devstack.stack import Stack

from tests.support.console.html import read_html
from tests.support.console.running_console import start_console
from tests.support.console.said import ended_session
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read, sign_in, stranger


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
    page = await read(client, f"/sessions/{session.session_id}/context", status=503)
    assert "transcript" in page.text
    assert "A service does not answer" in page.text
    assert "Nothing was lost: try again in a moment." in page.text
    assert session.session_id in (await read(client, "/sessions")).text, "other pages work"


async def test_a_change_that_may_have_been_done_is_not_said_to_be_lost(
    stack: Stack, tenant: ConsoleTenant, visitors: AsyncExitStack
) -> None:
    client = await visitors.enter_async_context(
        stranger(
            await start_console(
                stack, stack.data_dir / "console-hookless", "console-hookless", {"HOOK_TARGET": "127.0.0.1:9"}
            )
        )
    )
    await sign_in(client, tenant.token())
    answer = await client.post("/plugins/gate/pause", data={"form_key": await form_key(client)})
    assert answer.status_code == 503
    text = read_html(answer.text).text
    assert "A service does not answer" in text
    assert "It is not known whether it was done. Look before you repeat it." in text
    assert "Nothing was lost" not in text


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/sessions/ses_1/message", "/sessions/ses_1"),
        ("/approvals/apr_1", "/approvals/apr_1"),
        ("/start", "/start"),
        ("/models/cooldowns", "/models"),
        ("/plugins/a%20b%3F/pause", "/plugins/a%20b%3F"),
        ("/sign-out", "/"),
    ],
)
async def test_a_form_behind_the_end_of_the_sign_in_leads_to_the_sign_in(
    path: str, page: str, visitor: httpx2.AsyncClient
) -> None:
    answer = await visitor.post(path, data={"form_key": "x", "next": "https://evil.example"})
    assert answer.status_code == 401
    shown = read_html(answer.text)
    assert "Your sign-in has ended, and nothing was sent." in shown.text
    assert shown.form("/sign-in").fields["next"] == page
    script = await visitor.post(path, headers={"accept": "*/*"})
    assert (script.status_code, script.text) == (401, "Sign in first.\n")


async def test_refusals_before_a_page_are_pages(signed_in: SignedIn) -> None:
    person = await signed_in()
    key = await form_key(person)
    answer = await person.post("/models", data={"form_key": key})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    page = read_html(answer.text)
    assert "nothing was changed" in page.text
    assert "/sessions" in page.links
    answer = await person.post("/start", data={"form_key": key, **{f"a{n}": "x" for n in range(1_000)}})
    assert answer.status_code == 400
    assert "Too many fields" in read_html(answer.text).text


async def test_a_long_task_is_read(signed_in: SignedIn) -> None:
    person = await signed_in()
    data = {"form_key": await form_key(person), "task": "x" * (3 * 512 * 1024)}
    assert (await person.post("/start/code", data=data)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/sessions/x/files/{}", "/sessions/x/entries/{}/text", "/sessions/x/entries/1/images/{}"]
)
async def test_a_number_of_many_digits_is_no_address(path: str, signed_in: SignedIn) -> None:
    assert (
        "There is no such page" in (await read(await signed_in(), path.format("9" * 5_000), status=404)).text
    )


async def test_a_slash_too_many_is_no_address(visitor: httpx2.AsyncClient) -> None:
    """A redirect would name the scheme of the connection, which is not that of the browser."""
    answer = await visitor.get("/sessions/")
    assert answer.status_code == 404
    assert "location" not in answer.headers


async def test_a_browser_keeps_assets_and_asks_whether_they_changed(visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.get("/static/console.css")
    assert answer.headers.get_list("cache-control") == ["no-cache"]
    again = await visitor.get("/static/console.css", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert again.headers.get_list("cache-control") == ["no-cache"]
    assert not again.content


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
