"""A client token opens what its role includes, and a revoked token opens nothing."""

from pathlib import Path

import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import CallerKind, ClientRole
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.revoked_tokens import revocation_key
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.security.attacked import Attacked
from tests.support.security.raw_calls import METHODS, SECONDS, TENANT, bearer, path_of, refused, token_of

KILL = METHODS["spawnmesh.session.v1.SessionService.KillSession"]
CREATE = METHODS["spawnmesh.session.v1.TenantService.CreateTenant"]
LIST = METHODS["spawnmesh.session.v1.SessionService.ListSessions"]


def with_roles(keys: Path, roles: object) -> str:
    """Return the token of a client with this claim."""
    token = TokenMinter("client", keys / "client.pem").client_token(TENANT, "mallory", SECONDS)
    claims = jwt.decode(token, options={"verify_signature": False})
    key = load_pem_private_key((keys / "client.pem").read_bytes(), None)
    headers = {"kid": jwt.get_unverified_header(token)["kid"]}
    return jwt.encode({**claims, "roles": roles}, key, algorithm="EdDSA", headers=headers)  # type: ignore[arg-type]


async def refusal(channel: grpc.aio.Channel, method: MethodDescriptor, token: str) -> MeshError:
    """Call a unary RPC, which refuses, and return the whole error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channel.unary_unary(path_of(method))(b"", metadata=(bearer(token),), timeout=60)
    return error_from("attacked", error.value)


async def test_refusal_names_the_role_that_is_needed_and_those_that_are_held(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    minter = TokenMinter("client", attacked.keys / "client.pem")
    error = await refusal(
        channel, KILL, minter.client_token(TENANT, "mallory", SECONDS, role=ClientRole.USER)
    )
    assert (error.reason, error.facts) == (
        Reason.ROLE_MISSING,
        {"role_needed": "operator", "roles_held": "reader,user"},
    )
    assert attacked.reached == []


@pytest.mark.parametrize("roles", [[], ["owner"], ["READER"], [""]])
async def test_client_without_a_role_of_the_mesh_opens_nothing(
    attacked: Attacked, channel: grpc.aio.Channel, roles: list[str]
) -> None:
    error = await refusal(channel, LIST, with_roles(attacked.keys, roles))
    assert (error.reason, error.facts["roles_held"]) == (Reason.ROLE_MISSING, "")


@pytest.mark.parametrize("roles", ["admin", None, {"admin": True}, [1], [["admin"]]])
async def test_claim_that_is_no_list_of_names_is_refused(
    attacked: Attacked, channel: grpc.aio.Channel, roles: object
) -> None:
    error = await refusal(channel, LIST, with_roles(attacked.keys, roles))
    assert error.reason is Reason.TOKEN_INVALID


async def test_client_without_the_claim_does_what_its_tenant_may_and_no_more(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    token = token_of(attacked.keys, CallerKind.CLIENT)
    assert (await refused(channel, KILL, b"", headers=(bearer(token),))).reason is not Reason.ROLE_MISSING
    created = await refused(channel, CREATE, b"", headers=(bearer(token),))
    assert created.reason is Reason.CALLER_NOT_ALLOWED


async def test_token_for_longer_than_the_ceiling_is_refused_with_the_ceiling(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    minter = TokenMinter("client", attacked.keys / "client.pem")
    longest = 30 * 86_400
    error = await refusal(channel, LIST, minter.client_token(TENANT, "mallory", longest + 1))
    assert (error.reason, error.facts) == (Reason.TOKEN_LIFETIME_EXCEEDED, {"max_seconds": str(longest)})
    accepted = await refusal(channel, LIST, minter.client_token(TENANT, "mallory", longest))
    assert accepted.reason is not Reason.TOKEN_LIFETIME_EXCEEDED


async def test_tokens_of_an_ended_run_open_only_what_finds_out_itself(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    token = token_of(attacked.keys, CallerKind.RUN)
    attacked.process.revoked.add(revocation_key(TENANT, "run_1"), utc_now().timestamp() + SECONDS)
    for name, method in METHODS.items():
        policy = policy_of(method)
        got = await refused(channel, method, b"", headers=(bearer(token),))
        if not policy.checks_run and got.reason is not Reason.TOKEN_REVOKED:
            raise AssertionError(f"{name} answered {got}")
        if policy.checks_run:
            assert got.reason is not Reason.TOKEN_REVOKED, name
    services = {name.rpartition(".")[0] for name, one in METHODS.items() if policy_of(one).checks_run}
    assert services == {
        f"spawnmesh.session.v1.{name}" for name in ("BudgetService", "RunService", "SessionService")
    }


async def test_token_is_revoked_in_its_tenant_alone(attacked: Attacked, channel: grpc.aio.Channel) -> None:
    token = TokenMinter("client", attacked.keys / "client.pem").client_token(TENANT, "mallory", SECONDS)
    token_id = jwt.decode(token, options={"verify_signature": False})["jti"]
    expiry = utc_now().timestamp() + SECONDS
    attacked.process.revoked.add(revocation_key("other", token_id), expiry)
    assert (await refusal(channel, LIST, token)).reason is Reason.NOT_FOUND
    attacked.process.revoked.add(revocation_key(TENANT, token_id), expiry)
    assert (await refusal(channel, LIST, token)).reason is Reason.TOKEN_REVOKED
