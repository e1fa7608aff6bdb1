"""People sign in with a token or with a one-time link, and out again."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from spawnmesh_client.client import Mesh
from spawnmesh_client.revocations import revoke_token
from spawnmesh_console.clients.sign_in_file import offer_token
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.console.html import read_html
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.visitors import ConsoleTenant, form_key, open_tenant, read, sign_in, stranger
from tests.support.waiting import eventually

HOUR = 3_600.0
OTHER_SITES = (
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "https://evil.example",
    "HTTPS:evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    " //evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "/ok\r\nset-cookie: spawnmesh_console=x",
    "\r\n//evil.example",
    "evil.example",
    "@evil.example",
)


@pytest.fixture
async def offer(console: RunningConsole) -> AsyncIterator[Callable[[str], str]]:
    """Leave a token for the next person with the right code."""
    yield lambda token: offer_token(console.sign_in_file, token)
    console.sign_in_file.unlink(missing_ok=True)


async def test_a_link_signs_in_once(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str], console: RunningConsole
) -> None:
    code = offer(tenant.token())
    asked = {"code": code, "next": "/sessions?label=a&state=FAILED"}
    answer = await visitor.get("/sign-in", params=asked)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?label=a&state=FAILED")
    assert tenant.tenant_id in (await read(visitor, "/sessions")).text
    assert not console.sign_in_file.exists()
    assert not list(console.sign_in_file.parent.glob(".*"))
    async with stranger(console) as other:
        again = await other.get("/sign-in", params=asked)
        assert again.status_code == 403
        assert "This link was used" in read_html(again.text).text
        assert not other.cookies


async def test_two_uses_of_a_link_at_once_give_one_sign_in(
    tenant: ConsoleTenant, offer: Callable[[str], str], console: RunningConsole, visitors: AsyncExitStack
) -> None:
    people = [await visitors.enter_async_context(stranger(console)) for _ in range(8)]
    await asyncio.gather(*(person.get("/sign-in") for person in people))  # They are connected.
    for _ in range(5):
        code = offer(tenant.token())
        answers = await asyncio.gather(*(person.get("/sign-in", params={"code": code}) for person in people))
        assert Counter(answer.status_code for answer in answers) == {303: 1, 403: 7}


async def test_a_wrong_code_leaves_the_link_usable(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str]
) -> None:
    code = offer(tenant.token())
    for wrong in ("x", code[:-1], f"{code} ", code.swapcase(), "é", "\0", "%00"):
        assert (await visitor.get("/sign-in", params={"code": wrong})).status_code == 403
    assert (await visitor.get("/sign-in", params={"code": ""})).status_code == 200
    assert not visitor.cookies
    assert (await visitor.get("/sign-in", params={"code": code})).status_code == 303


async def test_a_newer_link_replaces_the_older_one(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str]
) -> None:
    older = offer(tenant.token())
    newer = offer(tenant.token())
    assert (await visitor.get("/sign-in", params={"code": older})).status_code == 403
    assert (await visitor.get("/sign-in", params={"code": newer})).status_code == 303


async def test_a_program_that_looks_at_a_link_does_not_use_it(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str]
) -> None:
    code = offer(tenant.token())
    looked = await visitor.head("/sign-in", params={"code": code})
    assert looked.status_code == 200
    assert not visitor.cookies
    assert (await visitor.get("/sign-in", params={"code": code})).status_code == 303


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"code_sha256": 1, "token": "x"}', "\xff", "null"])
async def test_a_broken_file_signs_no_one_in(
    content: str, visitor: httpx2.AsyncClient, console: RunningConsole, offer: Callable[[str], str]
) -> None:
    console.sign_in_file.write_text(content, encoding="latin-1")
    answer = await visitor.get("/sign-in", params={"code": "x"})
    assert answer.status_code == 403
    assert not visitor.cookies


async def test_a_token_that_ended_in_the_file_is_refused_in_words(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str]
) -> None:
    code = offer(tenant.token(seconds=-10))
    answer = await visitor.get("/sign-in", params={"code": code})
    assert answer.status_code == 403
    assert "has expired" in read_html(answer.text).text


async def test_a_token_signs_in(tenant: ConsoleTenant, visitor: httpx2.AsyncClient) -> None:
    page = await read(visitor, "/sign-in?next=/sessions%3Flabel%3Da")
    form = page.form("/sign-in")
    answer = await visitor.post(
        "/sign-in", data={**form.fields, "token": f"\n {tenant.token(ClientRole.READER)} \r\n"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?label=a")
    shown = (await read(visitor, "/sessions")).text
    for fact in (tenant.tenant_id, "Subject ada", "Role reader", "Token ends in 59 min"):
        assert fact in shown


def _unsigned(claims: dict[str, Any]) -> str:
    """Return a token with any claims, also such that JSON has no numbers for."""
    parts = ({"alg": "EdDSA", "typ": "JWT"}, claims)
    encoded = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return f"{'.'.join(encoded)}.{urlsafe_b64encode(b'x' * 64).decode()}"


def _minter(stack: Stack, issuer: str) -> TokenMinter:
    return TokenMinter(issuer, stack.keys / f"{issuer}.pem")


async def _refused(visitor: httpx2.AsyncClient, token: str) -> str:
    """Return the words with which the form refuses the token."""
    answer = await visitor.post("/sign-in", data={"token": token, "next": "/sessions?label=a"})
    page = read_html(answer.text)
    assert answer.status_code == 403, page.text
    assert not visitor.cookies
    assert "set-cookie" not in answer.headers
    assert len(token) < 16 or token not in answer.text
    assert page.form("/sign-in").fields["next"] == "/sessions?label=a"
    assert 'role="alert"' in answer.text
    return page.text


@pytest.mark.parametrize(
    "token", ["", "hello", "a.b.c", "..", "x" * 5_000, "e30.e30.e30", "é.ü.ß", "\0.\0.\0"]
)
async def test_nonsense_is_no_token(token: str, visitor: httpx2.AsyncClient) -> None:
    assert "token" in await _refused(visitor, token)


@pytest.mark.parametrize(
    "expiry", [float("inf"), float("nan"), 1e300, 10**30, -(10**30), None, "soon", True, [], 0]
)
async def test_a_strange_time_of_expiry_is_refused(expiry: object, visitor: httpx2.AsyncClient) -> None:
    claims = {"exp": expiry, "kind": "client", "tenant": "acme", "sub": "ada"}
    assert "token" in await _refused(visitor, _unsigned(claims))


@pytest.mark.parametrize(
    "claims", [{"sub": ["a"]}, {"roles": {"a": 1}}, {"tenant": {}}, {"roles": [[1], None]}]
)
async def test_strange_claims_are_refused(claims: dict[str, Any], visitor: httpx2.AsyncClient) -> None:
    known = {"exp": 4_000_000_000, "kind": "client", "tenant": "acme", "sub": "ada"}
    assert "The mesh does not accept the token" in await _refused(visitor, _unsigned({**known, **claims}))


async def test_tokens_of_others_than_people_are_refused(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    run, session = new_id(IdKind.RUN), new_id(IdKind.SESSION)
    for token in (
        _minter(stack, "runner").runner_token(),
        _minter(stack, "runner").runner_token(tenants=[tenant.tenant_id]),
        _minter(stack, "session").service_token(tenant.tenant_id),
        _minter(stack, "session").run_token(tenant.tenant_id, session, run, 1, HOUR),
    ):
        assert "the token is no person's" in await _refused(visitor, token)


async def test_tokens_that_the_mesh_does_not_know_are_refused(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient, tmp_path: Path
) -> None:
    own_key = Ed25519PrivateKey.generate()
    claims = jwt.decode(tenant.token(), options={"verify_signature": False})
    headers = jwt.get_unverified_header(tenant.token())
    for token in (
        jwt.encode(claims, own_key, algorithm="EdDSA", headers=headers),
        jwt.encode(claims, None, algorithm="none"),
        _unsigned(claims),
        f"{tenant.token()[:-8]}AAAAAAAA",
        _minter(stack, "runner").client_token(tenant.tenant_id, "ada", HOUR),
        jwt.encode({**claims, "kind": "admin"}, own_key, algorithm="EdDSA", headers=headers),
        _minter(stack, "runner").admin_token("ada", HOUR),
    ):
        assert "The mesh does not accept the token" in await _refused(visitor, token)
    assert "has expired" in await _refused(visitor, tenant.token(seconds=-1))
    for malformed in ("", "a/b", "\0", "é"):
        await _refused(visitor, _minter(stack, "client").client_token(malformed, "ada", HOUR))
    assert "role" in await _refused(visitor, tenant.token(ClientRole.NONE))


async def test_a_token_with_other_characters_inside_is_refused(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    head, claims, signature = tenant.token().split(".")
    for character in ("\n", "\r\n", "\t", " ", "\0", "é", "\u2028", "=", "\x7f"):
        broken = f"{head}.{claims[:9]}{character}{claims[9:]}.{signature}"
        await _refused(visitor, broken)


async def test_a_token_that_is_too_long_for_a_cookie_is_refused_in_words(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    token = _minter(stack, "client").client_token(tenant.tenant_id, "a" * 9_000, HOUR)
    assert "too long for cookies" in await _refused(visitor, token)


async def test_a_large_form_is_refused_before_it_is_read(visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.post("/sign-in", data={"token": "x" * 200_000})
    assert answer.status_code == 413
    files = {"token": ("a.txt", b"x" * 200_000)}
    assert (await visitor.post("/sign-in", files=files)).status_code in (400, 413)
    assert not visitor.cookies


async def test_a_sign_in_does_not_lead_to_another_site(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str]
) -> None:
    name = f"spawnmesh_console_{visitor.base_url.port}"
    for target in OTHER_SITES:
        shown = read_html((await visitor.get("/sign-in", params={"next": target})).text)
        assert shown.form("/sign-in").fields["next"] == "/", target
        answer = await visitor.post("/sign-in", data={"token": tenant.token(), "next": target})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), target
        names = {one.partition("=")[0] for one in answer.headers.get_list("set-cookie")}
        assert names == {name, f"{name}-2", f"{name}-3"}, target
        by_link = await visitor.get("/sign-in", params={"code": offer(tenant.token()), "next": target})
        assert by_link.headers["location"] == "/", target


async def test_the_cookie_is_for_this_console_alone(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    token = tenant.token(seconds=600)
    answer = await visitor.post("/sign-in", data={"token": token})
    headers = answer.headers.get_list("set-cookie")
    for header in headers:
        value, *attributes = [part.strip() for part in header.split(";")]
        given = {name.lower(): setting for name, _, setting in (one.partition("=") for one in attributes)}
        assert {"httponly", "samesite", "path", "max-age"} == given.keys() - {"expires"}
        assert (given["samesite"].lower(), given["path"]) == ("lax", "/")
        assert token not in value
        assert len(header) <= 4_096
    kept = [one for one in headers if "max-age=0" not in one.lower()]
    assert len(kept) == 1
    assert 590 <= int(kept[0].lower().partition("max-age=")[2].partition(";")[0]) <= 600


async def test_two_consoles_of_one_machine_do_not_sign_each_other_out(
    console: RunningConsole, stack: Stack, tenant: ConsoleTenant
) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    other = await start_console(stack, stack.data_dir / "other-console", "other-console")
    async with stranger(console) as browser:
        await sign_in(browser, tenant.token())
        answer = await browser.post(
            f"{other.base_url}/sign-in",
            data={"token": tenant.token()},
            headers={"origin": other.base_url},
        )
        assert answer.status_code == 303
        assert (await browser.get("/sessions")).status_code == 200
        assert (await browser.get(f"{other.base_url}/sessions")).status_code == 200


async def test_only_a_cookie_of_the_console_signs_in(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    await sign_in(visitor, tenant.token())
    (cookie,) = list(visitor.cookies.jar)
    name, sealed = cookie.name, str(cookie.value)
    visitor.cookies.clear()
    middle = len(sealed) // 2
    flipped = f"{sealed[:middle]}{'A' if sealed[middle] != 'A' else 'B'}{sealed[middle + 1 :]}"
    forged = Fernet(Fernet.generate_key()).encrypt(f'["{tenant.token()}", "key"]'.encode()).decode()
    for value in (
        flipped,
        sealed[:-4],
        sealed[4:],
        forged,
        tenant.token(),
        "",
        "x",
        '"',
        "%00",
        "é".encode(),
    ):
        shown = value if isinstance(value, bytes) else value.encode()
        answer = await visitor.get("/sessions", headers=[(b"cookie", name.encode() + b"=" + shown)])
        assert answer.status_code == 303, value
        assert answer.headers["location"].startswith("/sign-in")
    answer = await visitor.get("/sessions", headers={"cookie": f"{name}={sealed}"})
    assert answer.status_code == 200


async def test_the_address_is_kept_over_the_sign_in(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    address = "/sessions?label=a%26b%20%C3%A9&state=FAILED"
    answer = await visitor.get(address)
    assert answer.status_code == 303
    shown = await visitor.get(answer.headers["location"])
    form = read_html(shown.text).form("/sign-in")
    signed_in = await visitor.post("/sign-in", data={**form.fields, "token": tenant.token()})
    assert signed_in.headers["location"] == address


async def test_a_revoked_token_ends_the_sign_in(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: Callable[[str], Any]
) -> None:
    token = tenant.token(ClientRole.USER)
    client: httpx2.AsyncClient = await signed_in(token)
    kept = {"cookie": "; ".join(f"{one.name}={one.value}" for one in client.cookies.jar)}
    await revoke_token(mesh.wire, jwt.decode(token, options={"verify_signature": False})["jti"])

    async def refused() -> httpx2.Response | None:
        answer = await client.get("/sessions?label=a", headers=kept)
        return answer if answer.status_code == 303 else None

    answer = await eventually(refused)
    assert answer is not None
    assert answer.headers["location"] == "/sign-in?next=%2Fsessions%3Flabel%3Da"
    assert not client.cookies
    rows = await client.get("/sessions?part=rows", headers={**kept, "accept": "text/html-fragment"})
    assert rows.status_code == 401


async def test_a_person_signs_out(signed_in: Callable[[], Any]) -> None:
    client: httpx2.AsyncClient = await signed_in()
    page = await read(client, "/sessions")
    answer = await client.post("/sign-out", data=page.form("/sign-out").fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert not client.cookies
    assert (await client.get("/sessions")).status_code == 303


async def test_a_new_sign_in_replaces_the_person(
    console: RunningConsole, tenant: ConsoleTenant, signed_in: Callable[[], Any]
) -> None:
    client: httpx2.AsyncClient = await signed_in()
    old_key = await form_key(client)
    async with open_tenant(console) as other:
        await sign_in(client, other.token())
        shown = (await read(client, "/sessions")).text
        assert other.tenant_id in shown
        assert tenant.tenant_id not in shown
        assert (await client.post("/sign-out", data={"form_key": old_key})).status_code == 403


async def test_tokens_and_codes_are_in_no_log(
    tenant: ConsoleTenant, visitor: httpx2.AsyncClient, offer: Callable[[str], str], console: RunningConsole
) -> None:
    token = tenant.token()
    await visitor.post("/sign-in", data={"token": f"{token[:-8]}AAAAAAAA"})
    code = offer(token)
    await visitor.get("/sign-in", params={"code": code})
    await visitor.get("/sessions?expression=nonsense")
    log = (console.stack.data_dir / "logs" / f"{console.name}.log").read_text()
    assert "serving" in log
    for secret in (code, token, token.split(".")[1], token.split(".")[2]):
        assert secret not in log
