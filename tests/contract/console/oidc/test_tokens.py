"""An ID token that is not for this sign-in opens nothing, and long tokens have room in cookies."""

import base64
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.console.loopback_provider import Lies, LoopbackProvider
from tests.support.console.oidc_consoles import (
    CLIENT,
    at_provider,
    begin,
    come_back,
    is_signed_in,
    refused,
    sign_in_there,
)
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import read, stranger

UNPUBLISHED = rsa.generate_private_key(65537, 2048)
LYING_ID_TOKENS = {
    "nonce-of-another": Lies(id_claims={"nonce": "another"}),
    "no-nonce": Lies(id_claims={"nonce": None}),
    "empty-nonce": Lies(id_claims={"nonce": ""}),
    "audience": Lies(id_claims={"aud": "another"}),
    "audience-of-another-for-this-client": Lies(id_claims={"aud": "another", "azp": CLIENT}),
    "audiences-without-azp": Lies(id_claims={"aud": [CLIENT, "another"]}),
    "azp": Lies(id_claims={"azp": "another"}),
    "no-audience": Lies(id_claims={"aud": None}),
    "issuer": Lies(id_claims={"iss": "https://evil.example.com"}),
    "no-issuer": Lies(id_claims={"iss": None}),
    "expired": Lies(id_claims={"exp": 1_700_000_000}),
    "no-expiry": Lies(id_claims={"exp": None}),
    "of-the-future": Lies(id_claims={"nbf": 4_000_000_000}),
    "no-subject": Lies(id_claims={"sub": None}),
    "hash-of-another-access-token": Lies(id_claims={"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}),
    "key": Lies(signs_with=UNPUBLISHED),
    "audience-of-a-strange-type": Lies(id_claims={"aud": {CLIENT: 1}}),
    "expiry-of-a-strange-type": Lies(id_claims={"exp": "soon"}),
    "nonce-of-a-strange-type": Lies(id_claims={"nonce": ["another"]}),
    "hash-of-a-strange-type": Lies(id_claims={"at_hash": [1]}),
}


@pytest.mark.parametrize("lies", LYING_ID_TOKENS.values(), ids=LYING_ID_TOKENS.keys())
async def test_id_token_that_is_not_for_this_sign_in_opens_nothing(
    browser: httpx2.AsyncClient, provider: LoopbackProvider, lies: Lies
) -> None:
    provider.lies = lies
    await refused(browser, await sign_in_there(browser), says="identity provider")
    assert len(provider.exchanged) == 1


async def test_id_token_for_several_audiences_names_its_client(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    provider.lies.id_claims = {"aud": [CLIENT, "another"], "azp": CLIENT}
    assert (await sign_in_there(browser)).status_code == 303


def unsigned(token: str) -> str:
    """Return the token as one without a signature."""
    _, claims, _ = token.split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"RS256"}').rstrip(b"=").decode()
    return f"{header}.{claims}."


async def test_id_token_without_a_signature_opens_nothing(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    address = await begin(browser)
    nonce = parse_qs(urlsplit(address).query)["nonce"][0]
    provider.lies.tokens = {"id_token": unsigned(provider.token(aud=CLIENT, nonce=nonce, sub="ada"))}
    await refused(browser, await come_back(browser, await at_provider(browser, address)))


@pytest.mark.parametrize(
    ("claims", "tokens", "says"),
    [
        ({"org": "Not A Tenant"}, {}, "The mesh does not accept the token"),
        ({"realm_access": {"roles": ["auditor"]}}, {}, "The mesh does not accept the token"),
        ({"aud": "another"}, {}, "The mesh does not accept the token"),
        ({"exp": 1_700_000_000}, {}, "the token has expired"),
        ({}, {"access_token": "opaque"}, "gave a token that the mesh cannot read"),
    ],
    ids=["tenant", "role", "audience", "expired", "opaque"],
)
async def test_token_that_the_mesh_refuses_signs_nobody_in(
    browser: httpx2.AsyncClient,
    provider: LoopbackProvider,
    claims: dict[str, Any],
    tokens: dict[str, Any],
    says: str,
) -> None:
    provider.lies.access_claims, provider.lies.tokens = claims, tokens
    if tokens:
        provider.lies.id_claims = {"at_hash": None}
    await refused(browser, await sign_in_there(browser), says=says)


async def test_long_token_has_several_cookies_and_none_is_left_of_it(
    browser: httpx2.AsyncClient, provider: LoopbackProvider
) -> None:
    for length, count in ((0, 1), (2500, 2), (5000, 3), (100, 1)):
        provider.lies.access_claims = {"more": "x" * length}
        assert (await sign_in_there(browser)).status_code == 303
        assert len(list(browser.cookies.jar)) == count
        assert all(len(f"{one.name}={one.value}") < 4096 for one in browser.cookies.jar)
        assert await is_signed_in(browser)
    provider.lies.access_claims = {"more": "x" * 5000}
    assert (await sign_in_there(browser)).status_code == 303
    page = await read(browser, "/sessions")
    await browser.post("/sign-out", data=page.form("/sign-out").fields)
    assert list(browser.cookies.jar) == []
    provider.lies.access_claims = {"more": "x" * 9000}
    await refused(browser, await sign_in_there(browser), says="too long for cookies")


async def test_piece_of_another_person_does_not_fit(
    browser: httpx2.AsyncClient, browsers: AsyncExitStack, console: RunningConsole, provider: LoopbackProvider
) -> None:
    provider.lies.access_claims = {"more": "x" * 2500}
    other = await browsers.enter_async_context(stranger(console))
    for client in (browser, other):
        assert (await sign_in_there(client)).status_code == 303
    mine, theirs = ({one.name: one.value for one in client.cookies.jar} for client in (browser, other))
    (first, second) = sorted(mine)
    for given in ({first: mine[first], second: theirs[second]}, {first: mine[first]}, {second: mine[second]}):
        sent = "; ".join(f"{name}={value}" for name, value in given.items())
        browser.cookies.clear()
        assert (await browser.get("/sessions", headers={"cookie": sent})).status_code == 303
    sent = "; ".join(f"{name}={value}" for name, value in mine.items())
    assert (await browser.get("/sessions", headers={"cookie": sent})).status_code == 200
