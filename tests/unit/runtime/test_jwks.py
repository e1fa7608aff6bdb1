"""Keys from a URL."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.jwks import JwksUnreadable, JwksUrl, parse_jwks
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier


class Endpoint:
    def __init__(self) -> None:
        self.body = b"{}"
        self.status = 200
        self.fetches = 0
        self.url = ""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            endpoint.fetches += 1
            self.send_response(endpoint.status)
            self.end_headers()
            self.wfile.write(endpoint.body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever)
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


async def test_without_any_key_callers_are_told_to_come_back(endpoint: Endpoint) -> None:
    endpoint.status = 503
    verifier = TokenVerifier(JwksUrl(endpoint.url))
    with pytest.raises(MeshError) as caught:
        await verifier.authenticate("a.b.c")
    assert (caught.value.reason, caught.value.facts) == (Reason.DEPENDENCY_UNAVAILABLE, {"dependency": "jwks"})
    assert endpoint.url not in str(caught.value)


def test_keys_without_id_or_issuer_are_left_out(tmp_path: Path, write_key: Callable[..., Path]) -> None:
    write_key("hook", Ed25519PrivateKey.generate())
    [member] = json.loads((tmp_path / "jwks.json").read_text())["keys"]
    odd = [
        {**member, "kid": ""},
        {**member, "kid": "x", "iss": ""},
        {"kty": "oct", "k": "AA", "kid": "y", "iss": "hook"},
    ]
    assert list(parse_jwks(json.dumps({"keys": [*odd, member]}))) == ["hook-1"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": 1}', '{"keys": [1]}', '{"keys": [{"kty": "OKP", "kid": "a", "iss": "b"}]}']
)
def test_what_is_no_set_of_keys_is_said_to_be_none(text: str) -> None:
    with pytest.raises(JwksUnreadable):
        parse_jwks(text)
