"""A real browser goes to the provider and back: what it keeps and refuses on the way."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.console.browsers import Windows, browser_package, open_windows
from tests.support.console.loopback_provider import LoopbackProvider, serving_provider
from tests.support.console.oidc_consoles import OidcConsoles, start_trusting_session
from tests.support.console.running_console import RunningConsole
from tests.support.mesh.new_tenant import new_tenant

if TYPE_CHECKING:
    from playwright.async_api import Browser

CLIENT = "console"


@pytest.fixture(scope="module")
def provider() -> Iterator[LoopbackProvider]:
    with serving_provider() as served:
        served.clients[CLIENT] = None
        yield served


@pytest.fixture(scope="module")
async def console(stack: Stack, provider: LoopbackProvider) -> RunningConsole:
    """Start a console that people reach by another site than the provider: `localhost`."""
    trusted = {"issuer": provider.issuer, "audience": "spawnmesh", "jwks_url": f"{provider.issuer}/jwks"}
    session = await start_trusting_session(stack, "session-oidc-browser", [trusted])
    provider.claims = {"sub": "ada", "tenant": await new_tenant(stack), "roles": ["user"]}
    consoles = OidcConsoles(
        stack, provider.issuer, session, "oidc-browser-console", provider.redirect_uris, host="localhost"
    )
    return await consoles.start(SIGN_IN_CLIENT_ID=CLIENT)


@pytest.fixture
async def windows(
    browser: "Browser", console: RunningConsole, provider: LoopbackProvider
) -> AsyncIterator[Windows]:
    async with open_windows(browser, console) as opened:
        yield opened
        there = f"a request to another host: {provider.issuer}/authorize"
        opened.problems[:] = [one for one in opened.problems if not one.startswith(there)]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
async def test_person_signs_in_and_comes_back_to_the_page(
    windows: Windows, console: RunningConsole, scripts: bool
) -> None:
    expect = browser_package("playwright.async_api").expect
    page = await windows.open("/sessions?label=one%20two", scripts=scripts)
    await expect(page).to_have_title("Sign in · Spawnmesh")
    await page.get_by_role("link", name="Sign in at 127.0.0.1").click()
    await page.wait_for_url(f"{console.base_url}/sessions?label=one%20two")
    assert urlsplit(page.url).hostname == "localhost"
    (cookie,) = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")


async def test_person_can_use_the_keyboard_and_a_token_all_the_same(
    windows: Windows, stack: Stack, provider: LoopbackProvider
) -> None:
    page = await windows.open("/sign-in?next=/models")
    await page.get_by_text("Sign in with a token").focus()
    await page.keyboard.press("Enter")
    await page.get_by_label("Token").fill(stack.client_token(provider.claims["tenant"]))
    await page.get_by_role("button", name="Sign in").press("Enter")
    await page.wait_for_url("**/models")
