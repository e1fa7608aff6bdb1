"""An issuer of OpenID Connect that publishes its keys over HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from spawnmesh_core.clock import utc_now

ISSUER = "https://login.example.com/realms/acme"
AUDIENCE = "spawnmesh"


@dataclass
class IdentityProvider:
    """The keys by key id, and the number of times that they were fetched."""

    keys: dict[str, Any] = field(default_factory=dict)
    jwks_url: str = ""
    fetch_count: int = 0

    def add_key(self, key_id: str, algorithm: str) -> None:
        """Begin to sign with a new key."""
        if algorithm == "ES256":
            self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())
        else:
            self.keys[key_id] = rsa.generate_private_key(65537, 2048)

    def document(self) -> dict[str, Any]:
        """Return the JWKS: the public keys, and one that is not for signatures."""
        members = [_member(key_id, key) for key_id, key in self.keys.items()]
        encryption = {
            **_member("enc", rsa.generate_private_key(65537, 2048)),
            "use": "enc",
            "alg": "RSA-OAEP",
        }
        return {"keys": [*members, encryption]}

    def token(self, key_id: str, **changed: Any) -> str:
        """Return a token with plain claims, with some changed; None removes one."""
        now = int(utc_now().timestamp())
        plain = {
            "iss": ISSUER,
            "aud": [AUDIENCE, "account"],
            "sub": "0f1c",
            "iat": now,
            "exp": now + 300,
            "tenant": "acme",
            "roles": ["user", "offline_access"],
        }
        claims = {name: value for name, value in {**plain, **changed}.items() if value is not None}
        key = self.keys[key_id]
        algorithm = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": key_id})


def _member(key_id: str, key: Any) -> dict[str, Any]:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm, member = "ES256", jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())
    else:
        algorithm, member = "RS256", jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())
    return {**json.loads(member), "kid": key_id, "alg": algorithm, "use": "sig"}


@contextmanager
def serving_keys() -> Iterator[IdentityProvider]:
    """Serve the keys of an issuer, which has none yet."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.fetch_count += 1
            body = json.dumps(provider.document()).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.jwks_url = f"http://127.0.0.1:{server.server_port}/certs"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield provider
        server.shutdown()
        thread.join()
