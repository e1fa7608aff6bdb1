"""Keys like those of a development setup."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

PrivateKey = Ed25519PrivateKey | RSAPrivateKey


def jwk(issuer: str, key: PrivateKey) -> dict[str, Any]:
    if isinstance(key, Ed25519PrivateKey):
        member = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        member = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**member, "kid": f"{issuer}-1", "iss": issuer}


@pytest.fixture(scope="session")
def rsa_key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def write_key(tmp_path: Path) -> Callable[[str, PrivateKey], Path]:
    """Write `<issuer>.pem`, add the public key to `jwks.json`, and return the path of
    the former.
    """
    members: dict[str, Any] = {}

    def write(issuer: str, key: PrivateKey) -> Path:
        path = tmp_path / f"{issuer}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        members[issuer] = jwk(issuer, key)
        (tmp_path / "jwks.json").write_text(json.dumps({"keys": list(members.values())}))
        return path

    return write
