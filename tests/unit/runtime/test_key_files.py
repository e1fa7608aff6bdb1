"""Signing keys and the JWKS are created, replaced and removed."""

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jwt.algorithms import OKPAlgorithm
from spawnmesh_runtime.jwks import thumbprint
from spawnmesh_runtime.key_files import ISSUERS, KeyUnusable, make_keys
from spawnmesh_runtime.tokens import TokenMinter


def listed(folder: Path, issuer: str | None = None) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = json.loads((folder / "jwks.json").read_text())["keys"]
    return [member for member in members if issuer in (None, member["iss"])]


def key_id_of_tokens(folder: Path, issuer: str) -> str:
    token = TokenMinter(issuer, folder / f"{issuer}.pem").service_token("acme")
    key_id: str = jwt.get_unverified_header(token)["kid"]
    return key_id


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with key files that have no `kid:` line."""
    members = []
    for issuer in ISSUERS:
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{issuer}.pem").write_bytes(pem)
        member = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        members.append({**member, "kid": f"{issuer}-1", "alg": "EdDSA", "use": "sig", "iss": issuer})
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": members}))
    return tmp_path


def test_new_key_is_called_by_its_thumbprint_in_the_set_and_in_tokens(tmp_path: Path) -> None:
    make_keys(tmp_path)
    for member in listed(tmp_path):
        assert member["kid"] == thumbprint(member) == key_id_of_tokens(tmp_path, member["iss"])
    assert load_pem_private_key((tmp_path / "hook.pem").read_bytes(), None)


def test_key_files_without_a_key_id_keep_the_default_one(installed: Path) -> None:
    before = {file.name: file.read_bytes() for file in installed.glob("*.pem")}
    members = listed(installed)
    make_keys(installed)
    assert {file.name: file.read_bytes() for file in installed.glob("*.pem")} == before
    assert {member["kid"]: member["x"] for member in listed(installed)} == {
        member["kid"]: member["x"] for member in members
    }
    assert [key_id_of_tokens(installed, issuer) for issuer in ISSUERS] == [
        f"{issuer}-1" for issuer in ISSUERS
    ]


def test_old_public_keys_stay_behind_the_new_ones_until_they_are_dropped(installed: Path) -> None:
    [old] = listed(installed, "hook")
    for count in (2, 3):
        (installed / "hook.pem").unlink()
        make_keys(installed)
        make_keys(installed)
        new, *former = listed(installed, "hook")
        assert new["kid"] == key_id_of_tokens(installed, "hook")
        assert len({member["kid"] for member in (new, *former)}) == count
        assert {**old, **former[-1]} == old
    assert [member["iss"] for member in listed(installed)] == [*ISSUERS, "hook", "hook"]
    make_keys(installed, drop_old=True)
    assert [member["iss"] for member in listed(installed)] == list(ISSUERS)
    assert listed(installed, "hook") == [new]


@pytest.mark.parametrize("drop_old", [False, True])
def test_issuers_of_the_operators_own_stay(installed: Path, drop_old: bool) -> None:
    content = json.loads((installed / "jwks.json").read_text())
    own = {**content["keys"][0], "kid": "whatever", "iss": "portal"}
    (installed / "jwks.json").write_text(json.dumps({"keys": [own, *content["keys"]]}))
    make_keys(installed, drop_old=drop_old)
    assert [member["iss"] for member in listed(installed)] == [*ISSUERS, "portal"]
    assert listed(installed, "portal") == [own]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 1}', '{"keys": [1]}'])
def test_damaged_set_is_named_and_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "jwks.json").write_text(text)
    with pytest.raises(KeyUnusable, match=r"jwks\.json is not a JWKS"):
        make_keys(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("jwks.json", text)]
