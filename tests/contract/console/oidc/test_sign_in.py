"""People sign in at an OpenID provider, and come back to the page that they wanted to see."""

import base64
from contextlib import AsyncExitStack
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import pytest
from spawnmesh_client.client import connect
from spawnmesh_devstack.stack import Stack

from tests.support.console.loopback_provider import LoopbackProvider
from tests.support.console.oidc_consoles import (
    BEGIN,
    CALLBACK,
    CLIENT,
    PUBLIC_CLIENT,
    SECRET,
    OidcConsoles,
    at_provider,
    begin,
    come_back,
    is_signed_in,
    set_cookies,
    sign_in_there,
)
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import read, stranger


async def test_person_signs_in_at_the_provider_and_sees_the_sessions_of_the_tenant(
    browser: httpx2.AsyncClient, provider: LoopbackProvider, stack: Stack, tenant_id: str
) -> None:
    async with connect(targets=stack.targets, token=stack.client_token(tenant_id)) as mesh:
        await mesh.spawn("Say hello", label="seen-by-ada")
    page = await read(browser, "/sessions?label=seen-by-ada")
    (link,) = [link for link in page.links if link.startswith(BEGIN)]
    assert "Sign in at 127.0.0.1" in page.text
    begun = await browser.get(link, headers={"sec-fetch-site": "same-origin"})
    back = await come_back(browser, await at_provider(browser, begun.headers["location"]))
    assert (back.status_code, back.headers["location"]) == (303, "/sessions?label=seen-by-ada")
    seen = await read(browser, back.headers["location"])
    assert "seen-by-ada" in seen.text
    for word in ("Subject ada", "Role user", tenant_id):
        assert word in seen.text


async def test_request_has_what_protects_the_answer(
    browser: httpx2.AsyncClient, console: RunningConsole, provider: LoopbackProvider
) -> None:
    one, other = [dict(parse_qsl(urlsplit(await begin(browser)).query)) for _ in range(2)]
    assert one["redirect_uri"] == f"{console.base_url}{CALLBACK}"
    assert (one["response_type"], one["client_id"], one["scope"]) == ("code", CLIENT, "openid profile")
    assert one["code_challenge_method"] == "S256"
    assert (one["audience"], one["url"], one["tenant"]) == ("spawnmesh", "a&b", "main")
    for name in ("state", "nonce", "code_challenge"):
        assert len(one[name]) >= 43
        assert one[name] != other[name]
    assert "code_verifier" not in one
    assert SECRET not in str(one)
    assert provider.exchanged == []


async def test_exchange_proves_who_began_it_and_who_the_client_is(
    browser: httpx2.AsyncClient, console: RunningConsole, provider: LoopbackProvider
) -> None:
    assert (await sign_in_there(browser)).status_code == 303
    (fields,) = provider.exchanged
    assert set(fields) == {"grant_type", "code", "redirect_uri", "code_verifier"}
    assert fields["redirect_uri"] == f"{console.base_url}{CALLBACK}"
    assert 43 <= len(fields["code_verifier"]) <= 128


async def test_attempt_is_a_cookie_for_ten_minutes_that_scripts_cannot_read(
    browser: httpx2.AsyncClient,
) -> None:
    answer = await browser.get(BEGIN, headers={"sec-fetch-site": "same-origin"})
    ((name, cookie),) = set_cookies(answer).items()
    assert (cookie["max-age"], cookie["samesite"], cookie["path"]) == ("600", "lax", "/")
    assert cookie["httponly"]
    state = parse_qs(urlsplit(answer.headers["location"]).query)["state"][0]
    assert state not in cookie.value
    assert state not in base64.urlsafe_b64decode(cookie.value).decode("latin-1")
    back = await come_back(browser, await at_provider(browser, answer.headers["location"]))
    assert set_cookies(back)[name]["max-age"] == "0"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_tokens_of_each_algorithm_that_the_mesh_takes_are_taken(
    browser: httpx2.AsyncClient, provider: LoopbackProvider, algorithm: str
) -> None:
    provider.algorithm = algorithm
    assert (await sign_in_there(browser)).status_code == 303
    assert await is_signed_in(browser)


async def test_public_client_signs_in_with_its_id_token(
    consoles: OidcConsoles, provider: LoopbackProvider, browsers: AsyncExitStack
) -> None:
    console = await consoles.start(SIGN_IN_CLIENT_ID=PUBLIC_CLIENT, SIGN_IN_TOKEN="id")
    browser = await browsers.enter_async_context(stranger(console))
    provider.lies.access_claims = {"aud": "another", "org": None}
    assert (await sign_in_there(browser)).status_code == 303
    assert await is_signed_in(browser)
    (fields,) = provider.exchanged
    assert fields["client_id"] == PUBLIC_CLIENT
    assert "client_secret" not in fields


async def test_provider_that_takes_the_secret_in_the_form_gets_it_there(
    consoles: OidcConsoles, console: RunningConsole, provider: LoopbackProvider, browsers: AsyncExitStack
) -> None:
    provider.authentications = ["private_key_jwt", "client_secret_post"]
    secret = consoles.stack.data_dir / "oidc-client-secret"
    other = await consoles.start(SIGN_IN_CLIENT_ID=CLIENT, SIGN_IN_CLIENT_SECRET_FILE=str(secret))
    browser = await browsers.enter_async_context(stranger(other))
    assert (await sign_in_there(browser)).status_code == 303
    assert provider.exchanged[0]["client_secret"] == SECRET


async def test_replicas_that_share_the_keys_end_what_another_one_began(
    consoles: OidcConsoles, console: RunningConsole, provider: LoopbackProvider, browsers: AsyncExitStack
) -> None:
    shared = {
        "SIGN_IN_CLIENT_ID": PUBLIC_CLIENT,
        "PUBLIC_URL": "https://console.example.com",
        "COOKIE_KEY_FILE": str(console.cookie_key_file),
    }
    one, other = await consoles.start(**shared), await consoles.start(**shared)
    host = {"host": "console.example.com"}
    first = await browsers.enter_async_context(stranger(one))
    begun = await first.get(BEGIN, params={"next": "/models"}, headers=host)
    assert begun.status_code == 303, begun.text
    ((name, attempt),) = set_cookies(begun).items()
    assert name.startswith("__Host-")
    assert attempt["secure"]
    callback = await at_provider(first, begun.headers["location"])
    second = await browsers.enter_async_context(stranger(other))
    back = await second.get(callback, headers={**host, "cookie": f"{name}={attempt.value}"})
    assert (back.status_code, back.headers["location"]) == (303, "/models")
    cookies = set_cookies(back)
    person = cookies["__Host-spawnmesh"]
    assert all(
        cookie["secure"] and cookie["path"] == "/" and not cookie["domain"] for cookie in cookies.values()
    )
    seen = await first.get("/sessions", headers={**host, "cookie": f"__Host-spawnmesh={person.value}"})
    assert seen.status_code == 200


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("/sessions?label=a%20b&state=failed", "/sessions?label=a%20b&state=failed"),
        ("https://evil.example.com/", "/"),
        ("//evil.example.com/", "/"),
        ("/\\evil.example.com/", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
        ("/" + "a" * 2000, "/"),
    ],
)
async def test_person_comes_back_to_the_page_of_the_console_and_to_no_other_site(
    browser: httpx2.AsyncClient, target: str, leads_to: str
) -> None:
    answer = await sign_in_there(browser, target)
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_site_cannot_begin_a_sign_in(browser: httpx2.AsyncClient, site: str) -> None:
    answer = await browser.get(BEGIN, params={"next": "/models"}, headers={"sec-fetch-site": site})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fmodels")
    assert not set_cookies(answer)


async def test_log_has_no_secret_of_a_sign_in(
    browser: httpx2.AsyncClient, console: RunningConsole, provider: LoopbackProvider, stack: Stack
) -> None:
    address = await begin(browser)
    callback = await at_provider(browser, address)
    await come_back(browser, callback)
    (token,) = (await sign_in_there(browser)).headers.get_list("set-cookie")[:1]
    provider.lies.answer = {"error": "access_denied", "code": None}
    await sign_in_there(browser)
    asked, answer = (dict(parse_qsl(urlsplit(url).query)) for url in (address, callback))
    secrets = [
        asked["state"],
        asked["nonce"],
        answer["code"],
        SECRET,
        token.partition(";")[0].partition("=")[2],
    ]
    secrets += [fields["code_verifier"] for fields in provider.exchanged]
    log = (stack.data_dir / "logs" / f"{console.name}.log").read_text()
    assert "access_denied" in log
    assert [secret for secret in secrets if secret in log] == []


async def test_console_without_a_provider_has_no_such_pages(
    consoles: OidcConsoles, browsers: AsyncExitStack
) -> None:
    console = await consoles.start(SIGN_IN_ISSUER="")
    browser = await browsers.enter_async_context(stranger(console))
    for path in (BEGIN, CALLBACK):
        assert (await browser.get(path)).status_code == 404
    page = await read(browser, "/sign-in")
    assert [link for link in page.links if "oidc" in link] == []
