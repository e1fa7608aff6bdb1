"""The signing keys of a mesh: one Ed25519 key for each issuer, and one JWKS file that all verify against."""

import json
import os
from base64 import urlsafe_b64encode
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

ISSUERS = ("client", "session", "attachment-blob", "transcript", "model-router", "hook", "runner")


class KeyUnusable(Exception):
    """A key file holds none that tokens are signed with; the text names the file and nothing of it."""


def make_keys(directory: Path) -> Path:
    """Makes `<issuer>.pem` (0600) where missing, writes `jwks.json` anew from all of them, and gives its path.

    Each public key names its issuer in the member `iss`, so that one service cannot sign as another.
    Raises KeyUnusable for a key file that holds no Ed25519 key.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    jwks = {"keys": [_public_jwk(issuer, _private_key(directory / f"{issuer}.pem")) for issuer in ISSUERS]}
    jwks_file = directory / "jwks.json"
    _write(jwks_file, json.dumps(jwks, indent=2).encode(), mode=0o644)
    return jwks_file


def _private_key(file: Path) -> Ed25519PrivateKey:
    if not file.exists():
        fresh = Ed25519PrivateKey.generate()
        _write(file, fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except ValueError as error:
        raise KeyUnusable(f"{file.name} holds no private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"{file.name} holds a key of another kind than Ed25519")
    return key


def _public_jwk(issuer: str, key: Ed25519PrivateKey) -> dict[str, str]:
    point = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": urlsafe_b64encode(point).rstrip(b"=").decode(),
        "kid": f"{issuer}-1",
        "alg": "EdDSA",
        "use": "sig",
        "iss": issuer,
    }


def _write(file: Path, content: bytes, *, mode: int) -> None:
    """Replaces the file as a whole: a reader, or a crash, never sees half of it."""
    half = file.with_name(f".{file.name}.new")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    half.rename(file)
