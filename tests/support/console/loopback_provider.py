"""An OpenID provider on this machine, which checks what a real one checks, and can be made to lie.

It signs real tokens, takes each code once, from its client, with the verifier of its challenge, and
redirects to the registered address alone. A person who comes is signed in at once.
"""

import hashlib
import json
import secrets
import threading
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from spawnmesh_core.clock import utc_now

_TOKEN_SECONDS = 900


@cache
def _keys() -> Mapping[str, Any]:
    return {
        "RS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


@dataclass
class Grant:
    """A code that waits for its exchange."""

    client_id: str
    redirect_uri: str
    challenge: str
    nonce: str
    parameters: Mapping[str, str]


@dataclass
class Lies:
    """The faults of the provider. A claim or a member that is None is left out."""

    metadata: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, str | None] = field(default_factory=dict)
    """Parameters of its redirects back."""
    id_claims: dict[str, Any] = field(default_factory=dict)
    access_claims: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    """Members of the answer to an exchange."""
    exchange: tuple[int, str] | None = None
    """Status and body of each answer to an exchange, in place of the real one."""
    signs_with: Any = None
    """A key that it does not publish."""
    is_down: bool = False


@dataclass
class LoopbackProvider:
    """The provider. `clients` have secrets by their ids; a public one has None."""

    clients: dict[str, str | None] = field(default_factory=dict)
    redirect_uris: set[str] = field(default_factory=set)
    claims: dict[str, Any] = field(default_factory=dict)
    """The claims about the person."""
    algorithm: str = "RS256"
    authentications: list[str] = field(default_factory=lambda: ["client_secret_basic"])
    issuer: str = ""
    lies: Lies = field(default_factory=Lies)
    grants: dict[str, Grant] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The paths that were asked for."""
    exchanged: list[Mapping[str, str]] = field(default_factory=list)
    """The fields of each exchange, whether it was accepted or not."""

    def metadata(self) -> dict[str, Any]:
        """Return the document of OpenID Connect Discovery."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?tenant=main",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "EdDSA"],
            "token_endpoint_auth_methods_supported": self.authentications,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        } | self.lies.metadata

    def keys(self) -> dict[str, Any]:
        """Return the JWKS."""
        return {"keys": [_member(algorithm, key) for algorithm, key in _keys().items()]}

    def redirect(self, asked: Mapping[str, str]) -> tuple[int, str]:
        """Return the status, and the address to which a person is sent back, or the problem."""
        if asked.get("client_id") not in self.clients:
            return 400, "unknown client"
        if asked.get("redirect_uri") not in self.redirect_uris:
            return 400, "the redirect address is not registered"
        if asked.get("response_type") != "code" or "openid" not in asked.get("scope", "").split():
            return 400, "not the code flow of OpenID Connect"
        if asked.get("code_challenge_method") != "S256" or len(asked.get("code_challenge", "")) != 43:
            return 400, "no challenge"
        code = secrets.token_urlsafe(16)
        self.grants[code] = Grant(
            asked["client_id"], asked["redirect_uri"], asked["code_challenge"], asked.get("nonce", ""), asked
        )
        answer = {"code": code, "state": asked.get("state"), "iss": self.issuer, **self.lies.answer}
        given = {name: value for name, value in answer.items() if value is not None}
        return 302, f"{asked['redirect_uri']}?{urlencode(given)}"

    def exchange(self, fields: Mapping[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Return the answer to the exchange of a code."""
        self.exchanged.append(fields)
        client_id, secret = fields.get("client_id", ""), fields.get("client_secret")
        if authorization.startswith("Basic "):
            one, _, other = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            client_id, secret = unquote_plus(one), unquote_plus(other)
        if client_id not in self.clients or self.clients[client_id] != secret:
            return 401, {"error": "invalid_client"}
        grant = self.grants.pop(fields.get("code", ""), None)
        if (
            grant is None
            or grant.client_id != client_id
            or grant.redirect_uri != fields.get("redirect_uri")
            or grant.challenge != challenge_of(fields.get("code_verifier", ""))
        ):
            return 400, {"error": "invalid_grant", "error_description": "<script>alert(1)</script>"}
        return 200, self._tokens(grant)

    def token(self, **claims: Any) -> str:
        """Return a signed token with the times of now. A claim that is None is left out."""
        now = int(utc_now().timestamp())
        all_claims = {"iss": self.issuer, "iat": now, "exp": now + _TOKEN_SECONDS, **claims}
        return jwt.encode(
            {name: value for name, value in all_claims.items() if value is not None},
            self.lies.signs_with or _keys()[self.algorithm],
            algorithm=self.algorithm,
            headers={"kid": self.algorithm},
        )

    def _tokens(self, grant: Grant) -> dict[str, Any]:
        access = {**self.claims, "aud": "spawnmesh", "scope": grant.parameters.get("scope")}
        access_token = self.token(**{**access, **self.lies.access_claims})
        in_id_token = {
            **self.claims,
            "aud": grant.client_id,
            "nonce": grant.nonce or None,
            "at_hash": half_hash(access_token, self.algorithm),
        }
        answer = {
            "access_token": access_token,
            "token_type": "Bearer",
            "expires_in": _TOKEN_SECONDS,
            "id_token": self.token(**{**in_id_token, **self.lies.id_claims}),
            **self.lies.tokens,
        }
        return {name: value for name, value in answer.items() if value is not None}


def challenge_of(verifier: str) -> str:
    """Return the challenge of PKCE for the verifier."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def half_hash(token: str, algorithm: str) -> str:
    """Return the hash by which an ID token names an access token."""
    digest = hashlib.new("sha512" if algorithm == "EdDSA" else "sha256", token.encode()).digest()
    return urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()


def _member(algorithm: str, key: Any) -> dict[str, Any]:
    writers: dict[str, Any] = {
        "RS256": jwt.algorithms.RSAAlgorithm,
        "ES256": jwt.algorithms.ECAlgorithm,
        "EdDSA": jwt.algorithms.OKPAlgorithm,
    }
    public = json.loads(writers[algorithm].to_jwk(key.public_key()))
    return {**public, "kid": algorithm, "alg": algorithm, "use": "sig"}


@contextmanager
def serving_provider() -> Iterator[LoopbackProvider]:
    """Serve a provider without clients during the block."""
    provider = LoopbackProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            provider.asked.append(parts.path)
            if provider.lies.is_down:
                self._answer(503, "text/plain", "down")
            elif parts.path == "/.well-known/openid-configuration":
                self._answer(200, "application/json", json.dumps(provider.metadata()))
            elif parts.path == "/jwks":
                self._answer(200, "application/json", json.dumps(provider.keys()))
            elif parts.path == "/authorize":
                status, where = provider.redirect(dict(parse_qsl(parts.query)))
                self._answer(status, "text/plain", where, where if status == 302 else "")
            else:
                self._answer(404, "text/plain", "not here")

        def do_POST(self) -> None:
            provider.asked.append(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            if provider.lies.is_down:
                self._answer(503, "text/plain", "down")
            elif provider.lies.exchange is not None:
                status, text = provider.lies.exchange
                self._answer(status, "application/json", text)
            else:
                sent = self.headers.get("authorization", "")
                status, content = provider.exchange(dict(parse_qsl(body)), sent)
                self._answer(status, "application/json", json.dumps(content))

        def _answer(self, status: int, kind: str, text: str, location: str = "") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            if location:
                self.send_header("location", location)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
