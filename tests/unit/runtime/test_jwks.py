"""Keys from a URL."""

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime import jwks
from spawnmesh_runtime.jwks import JwksUnreadable, JwksUrl, parse_jwks, thumbprint
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

from tests.support.waiting import eventually


class Endpoint:
    def __init__(self) -> None:
        self.body = b"{}"
        self.status = 200
        self.answering = threading.Event()
        self.answering.set()
        self.fetches = 0
        self.redirects = False
        self.url = ""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            endpoint.fetches += 1
            endpoint.answering.wait(600)
            redirects = endpoint.redirects and not self.path.endswith("/there")
            self.send_response(302 if redirects else endpoint.status)
            if redirects:
                self.send_header("Location", f"{endpoint.url}/there")
            self.end_headers()
            self.wfile.write(endpoint.body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield endpoint
        server.shutdown()
        thread.join()


async def test_keys_are_fetched_once_and_again_for_an_unknown_key(
    endpoint: Endpoint, tmp_path: Path, write_key: Callable[..., Path]
) -> None:
    now = 0.0
    write_key("hook", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    verifier = TokenVerifier(JwksUrl(endpoint.url, monotonic=lambda: now))
    token = TokenMinter("hook", tmp_path / "hook.pem").service_token("acme")
    for _ in range(3):
        assert (await verifier.authenticate(token)).service == "hook"
    assert endpoint.fetches == 1

    write_key("session", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    unknown = TokenMinter("session", tmp_path / "session.pem").service_token("acme")
    with pytest.raises(MeshError) as caught:
        await verifier.authenticate(unknown)
    assert caught.value.reason is Reason.TOKEN_INVALID
    assert endpoint.fetches == 1
    now = 11.0
    assert (await verifier.authenticate(unknown)).service == "session"
    assert endpoint.fetches == 2


async def test_old_keys_serve_while_the_url_does_not_answer(
    endpoint: Endpoint, tmp_path: Path, write_key: Callable[..., Path]
) -> None:
    now = 0.0
    write_key("hook", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    verifier = TokenVerifier(JwksUrl(endpoint.url, monotonic=lambda: now))
    token = TokenMinter("hook", tmp_path / "hook.pem").service_token("acme")
    await verifier.authenticate(token)
    endpoint.status, now = 503, 400.0
    assert (await verifier.authenticate(token)).service == "hook"
    assert endpoint.fetches == 2


async def test_without_any_key_callers_get_a_retryable_error(endpoint: Endpoint) -> None:
    endpoint.status = 503
    verifier = TokenVerifier(JwksUrl(endpoint.url))
    with pytest.raises(MeshError) as caught:
        await verifier.authenticate("a.b.c")
    assert (caught.value.reason, caught.value.facts) == (
        Reason.DEPENDENCY_UNAVAILABLE,
        {"dependency": "jwks"},
    )
    assert endpoint.url not in str(caught.value)


async def test_callers_with_a_new_key_share_the_fetch_that_gets_it(
    endpoint: Endpoint, tmp_path: Path, write_key: Callable[..., Path]
) -> None:
    now = 0.0
    write_key("hook", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    verifier = TokenVerifier(JwksUrl(endpoint.url, monotonic=lambda: now))
    known = TokenMinter("hook", tmp_path / "hook.pem").service_token("acme")
    await verifier.authenticate(known)
    write_key("session", Ed25519PrivateKey.generate())
    endpoint.body, now = (tmp_path / "jwks.json").read_bytes(), 11.0
    endpoint.answering.clear()
    new = [
        TokenMinter("session", tmp_path / "session.pem").service_token(tenant)
        for tenant in ("acme", "globex")
    ]
    asked = asyncio.gather(*(verifier.authenticate(token) for token in new))
    while endpoint.fetches == 1:
        await asyncio.sleep(0.01)
    assert (await verifier.authenticate(known)).service == "hook", "who has a key waits for nothing"
    endpoint.answering.set()
    assert [caller.tenant_id for caller in await asked] == ["acme", "globex"]
    assert endpoint.fetches == 2


async def test_first_fetch_goes_on_for_the_others_when_one_caller_leaves(
    endpoint: Endpoint, tmp_path: Path, write_key: Callable[..., Path]
) -> None:
    write_key("hook", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    endpoint.answering.clear()
    verifier = TokenVerifier(JwksUrl(endpoint.url))
    token = TokenMinter("hook", tmp_path / "hook.pem").service_token("acme")
    first, second = (asyncio.ensure_future(verifier.authenticate(token)) for _ in range(2))
    while not endpoint.fetches:
        await asyncio.sleep(0.01)
    first.cancel()
    endpoint.answering.set()
    assert (await second).service == "hook"


@pytest.mark.parametrize("body", [b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'])
async def test_first_set_without_keys_is_none(endpoint: Endpoint, body: bytes) -> None:
    endpoint.body = body
    verifier = TokenVerifier(JwksUrl(endpoint.url))
    assert not await verifier.has_keys()


async def test_keys_that_are_all_taken_back_are_no_longer_good(
    endpoint: Endpoint, tmp_path: Path, write_key: Callable[..., Path]
) -> None:
    now = 0.0
    write_key("hook", Ed25519PrivateKey.generate())
    endpoint.body = (tmp_path / "jwks.json").read_bytes()
    verifier = TokenVerifier(JwksUrl(endpoint.url, monotonic=lambda: now))
    token = TokenMinter("hook", tmp_path / "hook.pem").service_token("acme")
    await verifier.authenticate(token)
    endpoint.body, now = b'{"keys": []}', 301.0
    with pytest.raises(MeshError) as caught:
        await verifier.authenticate(token)
    assert caught.value.reason is Reason.TOKEN_INVALID


async def test_what_speaks_no_http_gives_no_keys() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await TokenVerifier(JwksUrl(f"http://127.0.0.1:{port}/")).has_keys()


def test_keys_without_id_or_issuer_are_left_out(tmp_path: Path, write_key: Callable[..., Path]) -> None:
    write_key("hook", Ed25519PrivateKey.generate())
    [member] = json.loads((tmp_path / "jwks.json").read_text())["keys"]
    odd = [
        {**member, "kid": ""},
        {**member, "kid": "x", "iss": ""},
        {"kty": "oct", "k": "AA", "kid": "y", "iss": "hook"},
    ]
    assert set(parse_jwks(json.dumps({"keys": [*odd, member]}))) == {"hook-1"}


def test_thumbprint_is_that_of_the_standard() -> None:
    rsa = {
        "kty": "RSA",
        "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknj"
        "hMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn"
        "1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
        "e": "AQAB",
        "alg": "RS256",
        "kid": "2011-04-29",
    }
    ed25519 = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "a"}
    assert thumbprint(rsa) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs", "RFC 7638, 3.1"
    assert thumbprint(ed25519) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k", "RFC 8037, A.3"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"keys": 1}', '{"keys": [1]}', '{"keys": [{"kty": "OKP", "kid": "a", "iss": "b"}]}'],
)
def test_what_is_no_set_of_keys_is_said_to_be_none(text: str) -> None:
    with pytest.raises(JwksUnreadable):
        parse_jwks(text)


def keys_document(count: int, *, ids: int) -> bytes:
    made = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(Ed25519PrivateKey.generate().public_key()))
    return json.dumps(
        {"keys": [{**made, "iss": "hook", "kid": f"k{number % ids}"} for number in range(count)]}
    ).encode()


@pytest.mark.parametrize(
    ("body", "is_accepted"),
    [
        (keys_document(100, ids=100), True),
        (keys_document(101, ids=101), False),
        (keys_document(8, ids=1), True),
        (keys_document(9, ids=1), False),
        (b" " * (1024 * 1024 - 2_000) + keys_document(1, ids=1), True),
        (b" " * 1024 * 1024 + keys_document(1, ids=1), False),
        (b"[" * 200_000, False),
    ],
    ids=["100 keys", "101 keys", "8 of one id", "9 of one id", "1 MiB", "more than 1 MiB", "deep"],
)
async def test_set_of_keys_has_bounds(endpoint: Endpoint, body: bytes, is_accepted: bool) -> None:
    endpoint.body = body
    assert await TokenVerifier(JwksUrl(endpoint.url)).has_keys() is is_accepted


@pytest.mark.parametrize("redirects", [True, False])
async def test_redirect_to_keys_is_not_followed(endpoint: Endpoint, redirects: bool) -> None:
    endpoint.body, endpoint.redirects = keys_document(1, ids=1), redirects
    assert await TokenVerifier(JwksUrl(endpoint.url)).has_keys() is not redirects
    assert endpoint.fetches == 1


async def test_fetch_that_hangs_is_given_up_after_a_while_a_few_times(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "_URL_TIMEOUT_SECONDS", 0.2)
    now, started = 0.0, []

    def hang(_url: str) -> concurrent.futures.Future[Any]:
        started.append(now)
        document: concurrent.futures.Future[Any] = concurrent.futures.Future()
        document.set_running_or_notify_cancel()
        return document

    monkeypatch.setattr(jwks, "_start_fetch", hang)
    url = JwksUrl(endpoint.url, monotonic=lambda: now)
    for now in (100.0, 130.0, 161.0, 222.0, 283.0, 344.0):  # noqa: B007 - the clock reads it
        assert not await TokenVerifier(url).has_keys()
    assert started == [100.0, 161.0, 222.0, 283.0]


async def test_answer_that_does_not_end_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "_URL_TIMEOUT_SECONDS", 0.5)
    is_over = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not is_over.is_set():  # One header after the other.
            writer.write(b"x: y\r\n")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.3)
        writer.close()

    def threads() -> int:
        return sum(thread.name == "jwks" for thread in threading.enumerate())

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        url = JwksUrl(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for _ in range(3):
            assert not await TokenVerifier(url).has_keys()
            assert threads() <= 1
        is_over.set()
        await eventually(lambda: threads() == 0)
