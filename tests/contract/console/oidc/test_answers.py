"""An answer that is not for a sign-in of this browser opens nothing, nor does a fault of the provider."""

from contextlib import AsyncExitStack
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.console.loopback_provider import Lies, LoopbackProvider
from tests.support.console.oidc_consoles import (
    BEGIN,
    PUBLIC_CLIENT,
    OidcConsoles,
    at_provider,
    begin,
    changed,
    come_back,
    refused,
    set_cookies,
    sign_in_there,
)
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import stranger


async def test_answer_with_another_state_opens_nothing(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    for state in ("x" * 43, "", None):
        callback = await at_provider(browser, await begin(browser))
        await refused(
            browser, await come_back(browser, changed(callback, state=state)), says="another sign-in"
        )
    assert provider.exchanged == [], "a code is not sent for an answer that was not asked for"


async def test_answer_without_an_attempt_opens_nothing(
    browser: httpx2.AsyncClient, browsers: AsyncExitStack, console: RunningConsole, provider: LoopbackProvider
) -> None:
    attacker = await browsers.enter_async_context(stranger(console))
    callback = await at_provider(attacker, await begin(attacker))
    await refused(browser, await come_back(browser, callback), says="used already")
    assert provider.exchanged == []


async def test_answer_is_taken_once(browser: httpx2.AsyncClient, provider: LoopbackProvider) -> None:
    begun = await browser.get(BEGIN, headers={"sec-fetch-site": "same-origin"})
    ((name, attempt),) = set_cookies(begun).items()
    callback = await at_provider(browser, begun.headers["location"])
    assert (await come_back(browser, callback)).status_code == 303
    browser.cookies.clear()
    await refused(browser, await come_back(browser, callback), says="used already")
    # A thief has the address and the cookie: the provider takes the code once.
    stolen = await browser.get(callback, headers={"cookie": f"{name}={attempt.value}"})
    await refused(browser, stolen, says="invalid_grant")
    assert len(provider.exchanged) == 2


async def test_refused_answer_ends_the_attempt(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    callback = await at_provider(browser, await begin(browser))
    await refused(browser, await come_back(browser, changed(callback, state="guess")))
    await refused(browser, await come_back(browser, callback), says="used already")
    assert provider.exchanged == []


async def test_code_of_another_browser_cannot_be_injected(
    browser: httpx2.AsyncClient, browsers: AsyncExitStack, console: RunningConsole, provider: LoopbackProvider
) -> None:
    victim = await browsers.enter_async_context(stranger(console))
    theirs = dict(parse_qsl(urlsplit(await at_provider(victim, await begin(victim))).query))
    mine = await at_provider(browser, await begin(browser))
    await refused(browser, await come_back(browser, changed(mine, code=theirs["code"])), says="invalid_grant")
    assert provider.exchanged[0]["code"] == theirs["code"]


async def test_answer_of_another_issuer_is_not_exchanged(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    for issuer in ("https://evil.example.com", f"{provider.issuer}/", None):
        callback = await at_provider(browser, await begin(browser))
        await refused(
            browser,
            await come_back(browser, changed(callback, iss=issuer)),
            says="not of the identity provider",
        )
    assert provider.exchanged == []


async def test_provider_that_never_names_itself_is_taken_at_its_word(
    consoles: OidcConsoles, provider: LoopbackProvider, browsers: AsyncExitStack
) -> None:
    provider.lies.metadata = {"authorization_response_iss_parameter_supported": None}
    provider.lies.answer = {"iss": None}
    console = await consoles.start(SIGN_IN_CLIENT_ID=PUBLIC_CLIENT)
    browser = await browsers.enter_async_context(stranger(console))
    assert (await sign_in_there(browser)).status_code == 303
    browser.cookies.clear()
    provider.lies.answer = {"iss": "https://evil.example.com"}
    await refused(browser, await sign_in_there(browser), says="not of the identity provider")


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        ({"error": "access_denied"}, 403, "cancelled (access_denied)"),
        ({"error": "login_required"}, 403, "refused the sign-in (login_required)"),
        ({"error": "temporarily_unavailable"}, 503, "does not answer"),
        ({"error": "server_error"}, 503, "does not answer"),
        ({"error": "<img src=x>"}, 403, "unknown_error"),
        (
            {"error": "x", "error_description": "Call +49 and say your password"},
            403,
            "refused the sign-in (x)",
        ),
        ({}, 403, "unknown_error"),
    ],
)
async def test_error_of_the_provider_is_told_in_words_of_the_console(
    browser: httpx2.AsyncClient, provider: LoopbackProvider, answer: dict[str, str], status: int, says: str
) -> None:
    provider.lies.answer = {"code": None, **answer}
    page = await refused(browser, await sign_in_there(browser, "/models"), status=status, says=says)
    assert "password" not in page.text
    assert "<img" not in page.text
    (link,) = [link for link in page.links if link.startswith(BEGIN)]
    assert link == f"{BEGIN}?next=/models", "the next try leads to the same page"


@pytest.mark.parametrize(
    ("exchange", "status"),
    [
        ((400, '{"error": "invalid_client", "error_description": "<script>"}'), 403),
        ((400, '{"error": {"not": "a text"}}'), 403),
        ((503, "down"), 503),
        ((200, "<html>no JSON"), 503),
        ((200, "[]"), 503),
        ((200, "{}"), 503),
        ((200, '{"access_token": "x"}'), 503),
        ((200, '{"access_token": "x", "id_token": "x"}'), 503),
        ((200, '{"access_token": 1, "id_token": {}, "expires_in": "soon"}'), 503),
        ((302, ""), 503),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_exchange_that_fails_is_no_fault_of_the_console(
    browser: httpx2.AsyncClient, provider: LoopbackProvider, exchange: tuple[int, str], status: int
) -> None:
    provider.lies.exchange = exchange
    await refused(browser, await sign_in_there(browser), status=status, says="identity provider")
    provider.lies.exchange = None
    assert (await sign_in_there(browser)).status_code == 303


async def test_answer_of_a_megabyte_is_not_read(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    provider.lies.tokens = {"more": "x" * 1_100_000}
    await refused(browser, await sign_in_there(browser), status=503, says="does not answer")
    provider.lies.tokens = {"more": "x" * 900_000}
    assert (await sign_in_there(browser)).status_code == 303


async def test_provider_that_is_away_at_the_exchange_is_named(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    callback = await at_provider(browser, await begin(browser))
    provider.lies.is_down = True
    await refused(browser, await come_back(browser, callback), status=503, says="does not answer")


@pytest.mark.parametrize(
    "lies",
    [
        Lies(is_down=True),
        Lies(metadata={"issuer": "https://another.example.com"}),
        Lies(metadata={"token_endpoint": "http://login.example.com/token"}),
        Lies(metadata={"authorization_endpoint": None}),
        Lies(metadata={"jwks_uri": 7}),
    ],
    ids=["down", "another-issuer", "plain-http", "no-endpoint", "no-text"],
)
async def test_provider_that_cannot_be_asked_leaves_the_way_with_a_token(
    consoles: OidcConsoles,
    provider: LoopbackProvider,
    browsers: AsyncExitStack,
    lies: Lies,
    stack: Stack,
    tenant_id: str,
) -> None:
    provider.lies = lies
    console = await consoles.start(SIGN_IN_CLIENT_ID=PUBLIC_CLIENT)
    browser = await browsers.enter_async_context(stranger(console))
    answer = await browser.get(BEGIN, params={"next": "/models"})
    page = await refused(browser, answer, status=503, says="The identity provider does not answer")
    form = page.form("/sign-in")
    assert form.fields["next"] == "/models"
    done = await browser.post("/sign-in", data={**form.fields, "token": stack.client_token(tenant_id)})
    assert (done.status_code, done.headers["location"]) == (303, "/models")
