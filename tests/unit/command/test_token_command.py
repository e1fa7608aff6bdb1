"""`spawnmesh token` makes tokens of a role, and `spawnmesh token revoke` names the token by its id."""

import hashlib
import json
from pathlib import Path

import jwt
import pytest
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, unset

__all__ = ["mesh", "unset"]


@pytest.fixture
def minter(keys: Path) -> TokenMinter:
    return TokenMinter("client", keys / "client.pem")


def claims_of(token: str) -> dict[str, object]:
    claims: dict[str, object] = jwt.decode(token, options={"verify_signature": False})
    return claims


@pytest.mark.parametrize("role", ["reader", "user", "operator", "admin"])
async def test_token_has_the_role_that_was_asked_for(mesh: FakeMesh, role: str) -> None:
    made = json.loads((await mesh.run("--tenant", "acme", "token", "--role", role, "--json")).stdout)
    claims = claims_of(made["token"])
    assert (claims["tenant"], claims["roles"], made["role"]) == ("acme", [role], role)


async def test_token_without_a_role_has_no_claim_and_is_an_operators(mesh: FakeMesh) -> None:
    made = json.loads((await mesh.run("token", "--json")).stdout)
    assert "roles" not in claims_of(made["token"])
    assert made["role"] == "operator"


@pytest.mark.parametrize("more", [("--admin",), ("--runner", "--tenant", "acme")])
async def test_role_is_for_tokens_of_clients(mesh: FakeMesh, more: tuple[str, ...]) -> None:
    made = await mesh.run("token", "--role", "reader", *more)
    assert made.exit_code == 2
    assert "--role is for the token of a client" in made.stderr


async def test_refusal_of_a_role_says_what_helps(
    mesh: FakeMesh, minter: TokenMinter, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await mesh.run("token", "--role", "user")
    monkeypatch.setenv("SPAWNMESH_TOKEN", made.stdout.strip())
    killed = await mesh.run("kill", SESSION_ID)
    assert killed.stderr.startswith("error: ROLE_MISSING: ")
    assert "role_needed=operator, roles_held=reader,user" in killed.stderr


async def test_token_is_revoked_by_its_id_and_is_not_sent(mesh: FakeMesh, minter: TokenMinter) -> None:
    token = minter.client_token("acme", "thief", 3600)
    revoked = json.loads((await mesh.run("--tenant", "acme", "token", "revoke", token, "--json")).stdout)
    ((kind, request),) = mesh.tokens.revoked
    claims = claims_of(token)
    assert (kind, request.token_id, request.tenant_id) == ("client", claims["jti"], "")
    assert request.expire_time.seconds == claims["exp"]
    assert revoked["token_id"] == claims["jti"]
    assert token.encode() not in request.SerializeToString()


async def test_token_without_an_id_is_revoked_by_its_hash(mesh: FakeMesh) -> None:
    token = jwt.encode({"sub": "0f1c"}, "x" * 32, algorithm="HS256")
    await mesh.run("token", "revoke", token)
    ((_, request),) = mesh.tokens.revoked
    assert request.token_id == f"sha256:{hashlib.sha256(token.rpartition('.')[0].encode()).hexdigest()}"


async def test_operator_of_the_mesh_names_the_tenant_of_the_token(
    mesh: FakeMesh, minter: TokenMinter
) -> None:
    await mesh.run("token", "revoke", "--admin", minter.client_token("acme", "thief", 3600))
    await mesh.run("token", "revoke", "--admin", "--tenant", "globex", "tok_1")
    await mesh.run("token", "revoke", "--admin", minter.admin_token("thief", 3600))
    named = [(kind, request.tenant_id) for kind, request in mesh.tokens.revoked]
    assert named == [("admin", "acme"), ("admin", "globex"), ("admin", "")]


async def test_tenant_of_an_id_is_named_by_operators_of_the_mesh_only(mesh: FakeMesh) -> None:
    """A client revokes as a client of the tenant, wherever the option stands."""
    revoked = await mesh.run("token", "revoke", "--tenant", "globex", "tok_1")
    assert revoked.exit_code == 0
    ((kind, request),) = mesh.tokens.revoked
    assert (kind, request.tenant_id) == ("client", "")


async def test_token_is_for_the_tenant_wherever_the_option_stands(mesh: FakeMesh) -> None:
    made = json.loads((await mesh.run("token", "--tenant", "acme", "--json")).stdout)
    assert made["tenant_id"] == "acme"
    assert jwt.decode(made["token"], options={"verify_signature": False})["tenant"] == "acme"
    refused = await mesh.run("token", "--tenant", "acme", "--tenant", "globex")
    assert (refused.exit_code, "need --runner" in refused.stderr) == (2, True)


async def test_client_revokes_the_harness_of_its_own_tenant_alone(
    mesh: FakeMesh, minter: TokenMinter
) -> None:
    own = minter.runner_token("harness", 3600, tenants=["acme"])
    assert (await mesh.run("--tenant", "acme", "token", "revoke", own)).exit_code == 0
    assert len(mesh.tokens.revoked) == 1
    for token, named in (
        (
            minter.runner_token("harness", 3600, tenants=["acme", "globex"]),
            "is not for the tenant acme alone",
        ),
        (minter.runner_token("harness", 3600, tenants=["globex"]), "is not for the tenant acme alone"),
        (minter.runner_token("harness", 3600), "is not for the tenant acme alone"),
        (minter.admin_token("operator", 3600), "the token of an operator of the mesh"),
    ):
        refused = await mesh.run("--tenant", "acme", "token", "revoke", token)
        assert refused.exit_code == 2
        assert named in " ".join(refused.stderr.replace("│", " ").split())
        assert "--admin" in refused.stderr
    assert len(mesh.tokens.revoked) == 1
