"""The mesh's signing keys."""

import json
import stat

import jwt
import pytest
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.keys import ISSUERS, make_keys
from spawnmesh_runtime.tokens import TokenMinter


def test_a_token_signed_with_an_issuers_key_verifies_against_the_jwks_under_its_kid(tmp_path):
    jwks_file = make_keys(tmp_path / "keys")
    keys = jwt.PyJWKSet.from_json(jwks_file.read_text())
    issuer_of = {key["kid"]: key["iss"] for key in json.loads(jwks_file.read_text())["keys"]}

    assert list(issuer_of.values()) == list(ISSUERS)
    for issuer in ISSUERS:
        token = TokenMinter(issuer, tmp_path / "keys" / f"{issuer}.pem").service_token("acme")
        key_id = jwt.get_unverified_header(token)["kid"]
        assert issuer_of[key_id] == issuer
        assert jwt.decode(token, keys[key_id], algorithms=["EdDSA"], audience="spawnmesh")["sub"] == issuer


def test_private_keys_are_for_the_owner_only(tmp_path):
    make_keys(tmp_path)

    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.pem")} == {0o600}


def test_existing_keys_are_kept_and_missing_ones_are_added(tmp_path):
    jwks = make_keys(tmp_path).read_text()
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.pem")}
    (tmp_path / "hook.pem").unlink()
    (tmp_path / "jwks.json").unlink()

    make_keys(tmp_path)

    after = {file.name: file.read_bytes() for file in tmp_path.glob("*.pem")}
    assert {name for name in before if before[name] != after[name]} == {"hook.pem"}
    assert make_keys(tmp_path).read_text() != jwks
    assert len(after) == len(ISSUERS)


def test_a_damaged_key_file_is_named_and_not_replaced(tmp_path):
    (tmp_path / "runner.pem").write_text("not a key")

    with pytest.raises(StackError, match=r"runner\.pem holds no private key"):
        make_keys(tmp_path)
    assert (tmp_path / "runner.pem").read_text() == "not a key"
