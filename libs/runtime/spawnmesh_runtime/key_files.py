"""The signing keys of a mesh: an Ed25519 key for each issuer, and a JWKS file with the
public keys.
"""

import json
import os
import re
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from spawnmesh_runtime.jwks import default_key_id, thumbprint

ISSUERS = ("client", "session", "attachment-blob", "transcript", "model-router", "hook", "runner")
_KEY_ID = re.compile(rb"^kid: (\S+)\s*$", re.MULTILINE)


class KeyUnusable(Exception):
    """A key file has no usable signing key. The text names the file, not its content."""


def make_keys(directory: Path, *, drop_old: bool = False) -> Path:
    """Create the missing `<issuer>.pem` (0600), and return the path of `jwks.json`.

    The file lists the public keys of these issuers first, then the other keys that it had: keys of
    other issuers, and earlier keys of these issuers unless `drop_old` is set. Each public key names
    its issuer in the member `iss`, so that a service cannot sign as another one. Raises KeyUnusable
    if a key file has no Ed25519 key or `jwks.json` is not a JWKS.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    jwks_file = directory / "jwks.json"
    listed = _listed(jwks_file)
    signing = [_public_jwk(issuer, _private_key(directory / f"{issuer}.pem")) for issuer in ISSUERS]
    known = {(member["iss"], member["x"]) for member in signing}
    others = [
        member
        for member in listed
        if (member.get("iss"), member.get("x")) not in known
        and not (drop_old and member.get("iss") in ISSUERS)
    ]
    _write(jwks_file, json.dumps({"keys": [*signing, *others]}, indent=2).encode(), mode=0o644)
    return jwks_file


def key_id_of(pem: bytes, issuer: str) -> str:
    """Return the key id of a key file: the text of its line `kid: …`, else `<issuer>-1`."""
    found = _KEY_ID.search(pem)
    return found.group(1).decode() if found else default_key_id(issuer)


def _listed(jwks_file: Path) -> list[dict[str, Any]]:
    if not jwks_file.exists():
        return []
    try:
        members: list[dict[str, Any]] = json.loads(jwks_file.read_bytes())["keys"]
    except (ValueError, KeyError, TypeError) as error:
        raise KeyUnusable(f"{jwks_file.name} is not a JWKS") from error
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise KeyUnusable(f"{jwks_file.name} is not a JWKS")
    return members


def _private_key(file: Path) -> tuple[bytes, Ed25519PrivateKey]:
    """Return the content of the file and its key."""
    if not file.exists():
        fresh = Ed25519PrivateKey.generate()
        pem = fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write(file, f"kid: {thumbprint(_jwk(fresh))}\n".encode() + pem, mode=0o600)
    pem = file.read_bytes()
    try:
        key = load_pem_private_key(pem, password=None)
    except ValueError as error:
        raise KeyUnusable(f"{file.name} holds no private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"{file.name} has a key that is not Ed25519")
    return pem, key


def _public_jwk(issuer: str, file: tuple[bytes, Ed25519PrivateKey]) -> dict[str, str]:
    pem, key = file
    return {**_jwk(key), "kid": key_id_of(pem, issuer), "alg": "EdDSA", "use": "sig", "iss": issuer}


def _jwk(key: Ed25519PrivateKey) -> dict[str, str]:
    point = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"kty": "OKP", "crv": "Ed25519", "x": urlsafe_b64encode(point).rstrip(b"=").decode()}


def _write(file: Path, content: bytes, *, mode: int) -> None:
    """Replace the file atomically: a reader never sees an incomplete file, also after a crash."""
    temporary = file.with_name(f".{file.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    temporary.rename(file)
