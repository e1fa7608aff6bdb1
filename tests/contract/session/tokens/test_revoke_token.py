"""RevokeToken: a revoked token opens nothing, here and after a restart, until it expires."""

import random
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.tokens import SERVICE_TOKEN_SECONDS, TokenMinter
from spawnmesh_session.app import make_sweeper
from spawnmesh_session.domain.revocations import may_revoke, refused_until
from spawnmesh_session.store import revoked_tokens

from tests.support.serving import client_tokens
from tests.support.session.calls import another
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.revoking import HOUR, id_of, is_refused, listing, revoke
from tests.support.session.worker import components_of
from tests.support.waiting import eventually


@pytest.fixture
def tokens(keys: Path) -> TokenMinter:
    return client_tokens(keys)


async def test_RevokeToken__is_refused_from_then_on_and_by_replicas_that_start_later(
    mesh: Mesh, open_mesh: OpenMesh, tokens: TokenMinter
) -> None:
    stolen, own = (tokens.client_token(mesh.tenant, name, HOUR) for name in ("thief", "operator"))
    assert await listing(mesh, stolen) is None
    await revoke(mesh, own, token_id=id_of(stolen))
    await eventually(is_refused(mesh, stolen))
    assert await listing(mesh, own) is None
    async with open_mesh() as later:
        assert await listing(later, stolen) is Reason.TOKEN_REVOKED


async def test_RevokeToken__reaches_tokens_of_the_callers_tenant_alone(
    mesh: Mesh, tokens: TokenMinter
) -> None:
    foreign = another(mesh)
    await foreign.create_tenant()
    token, attacker = (
        tokens.client_token(tenant, "somebody", HOUR) for tenant in (mesh.tenant, foreign.tenant)
    )
    await revoke(foreign, attacker, token_id=id_of(token))
    own = tokens.client_token(foreign.tenant, "another", HOUR)
    await revoke(foreign, attacker, token_id=id_of(own))  # It is read after the one before.
    await eventually(is_refused(foreign, own))
    assert await listing(mesh, token) is None
    with pytest.raises(MeshError) as refused:
        await revoke(foreign, attacker, token_id=id_of(token), tenant_id=mesh.tenant)
    assert refused.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("role", [ClientRole.READER, ClientRole.USER])
async def test_RevokeToken__needs_an_operator(mesh: Mesh, tokens: TokenMinter, role: ClientRole) -> None:
    with pytest.raises(MeshError) as refused:
        await revoke(mesh, tokens.client_token(mesh.tenant, "user", HOUR, role=role), token_id="tok_1")
    assert refused.value.reason is Reason.ROLE_MISSING


async def test_RevokeToken__an_operator_of_the_mesh_revokes_tokens_of_any_tenant_and_of_none(
    mesh: Mesh, tokens: TokenMinter
) -> None:
    admin, other_admin = tokens.admin_token("one", HOUR), tokens.admin_token("two", HOUR)
    client = tokens.client_token(mesh.tenant, "thief", HOUR)
    await revoke(mesh, admin, token_id=id_of(client), tenant_id=mesh.tenant)
    await eventually(is_refused(mesh, client))
    await revoke(mesh, admin, token_id=id_of(other_admin))
    await eventually(is_refused(mesh, other_admin))


async def test_RevokeToken__an_admin_with_a_tenant_revokes_its_own_tokens_and_those_it_names(
    mesh: Mesh, tokens: TokenMinter
) -> None:
    foreign = another(mesh)
    await foreign.create_tenant()
    admin = tokens.client_token(mesh.tenant, "admin", HOUR, role=ClientRole.ADMIN)
    own, other = (tokens.client_token(tenant, "thief", HOUR) for tenant in (mesh.tenant, foreign.tenant))
    await revoke(mesh, admin, token_id=id_of(own))
    await revoke(mesh, admin, token_id=id_of(other), tenant_id=foreign.tenant)
    await eventually(is_refused(mesh, own))
    await eventually(is_refused(foreign, other))


async def test_RevokeToken__is_kept_until_no_token_can_be_valid_and_no_longer_than_any_token_lives(
    mesh: Mesh, tokens: TokenMinter
) -> None:
    own = tokens.client_token(mesh.tenant, "operator", HOUR)
    longest = utc_now() + timedelta(seconds=mesh.settings.max_token_lifetime_seconds)
    stamp = Timestamp()
    stamp.FromDatetime(utc_now() + timedelta(hours=1))
    soon = await revoke(mesh, own, token_id="tok_1", expire_time=stamp)
    minutes = soon.expire_time.ToDatetime(UTC) - stamp.ToDatetime(UTC)
    assert timedelta(seconds=SERVICE_TOKEN_SECONDS) < minutes < timedelta(minutes=10)
    forever = await revoke(mesh, own, token_id="tok_1")
    assert abs(forever.expire_time.ToDatetime(UTC) - longest) < timedelta(minutes=1)
    again = await revoke(mesh, own, token_id="tok_1", expire_time=stamp)
    assert again.expire_time == forever.expire_time


async def test_RevokeToken__a_tenant_has_a_limit(
    mesh: Mesh, tokens: TokenMinter, session_database: Database
) -> None:
    async with session_database.transaction(mesh.tenant) as connection:
        await connection.execute(
            "insert into revoked_tokens (tenant_id, token_id, is_run, expire_time)"
            " select %s, 'tok_' || n, false, now() + interval '1 hour' from generate_series(1, 10000) n",
            (mesh.tenant,),
        )
    own = tokens.client_token(mesh.tenant, "operator", HOUR)
    with pytest.raises(MeshError) as refused:
        await revoke(mesh, own, token_id="tok_more")
    assert (refused.value.reason, refused.value.facts) == (
        Reason.REVOCATION_COUNT_EXCEEDED,
        {"limit": "10000"},
    )
    await revoke(mesh, own, token_id="tok_1")


async def test_the_statement_and_the_domain_agree_on_limits_and_times(
    mesh: Mesh, session_database: Database
) -> None:
    """Any tokens revoked before, and any expiry, around the limit and the lifetimes."""
    any_state = random.Random(1)
    seconds = [timedelta(seconds=number) for number in (-1, 0, 1, 59, 60, 61)]
    for _ in range(60):
        kept_for, max_lifetime = (timedelta(seconds=any_state.choice((1, 60))) for _ in range(2))
        limit, with_expiry = any_state.randint(1, 3), any_state.random() < 0.8
        tokens = {
            f"tok_{number}": (any_state.random() < 0.3, any_state.choice(seconds))
            for number in range(any_state.randint(0, 4))
        }
        wanted, expires_in = any_state.choice(("tok_0", "tok_new")), any_state.choice(seconds)
        async with session_database.transaction(mesh.tenant) as connection:
            await connection.execute("delete from revoked_tokens")
            now = (await (await connection.execute("select now()")).fetchone() or {})["now"]
            for token_id, (is_run, left) in tokens.items():
                await connection.execute(
                    "insert into revoked_tokens (tenant_id, token_id, is_run, expire_time)"
                    " values (%s, %s, %s, %s)",
                    (mesh.tenant, token_id, is_run, now + left),
                )
            expire_time = now + expires_in if with_expiry else None
            life = {"kept_for": kept_for, "max_lifetime": max_lifetime}
            until = await revoked_tokens.revoke_token(
                connection, mesh.tenant, wanted, expire_time, limit=limit, **life
            )
        others = [left for name, (is_run, left) in tokens.items() if name != wanted and not is_run]
        expected = None
        if may_revoke(sum(left > timedelta() for left in others), limit):
            before = [now + tokens[wanted][1]] if wanted in tokens else []
            expected = max(refused_until(expire_time, now, **life), *before, now)
        assert until == expected, (limit, tokens, wanted, life, expire_time)


async def test_expired_revocations_are_deleted(mesh: Mesh, session_database: Database) -> None:
    ids = {"spent": "-1 second", "valid": "1 hour"}
    async with session_database.transaction(mesh.tenant) as connection:
        for token_id, left in ids.items():
            await connection.execute(
                "insert into revoked_tokens (tenant_id, token_id, is_run, expire_time)"
                " values (%s, %s, false, now() + %s::interval)",
                (mesh.tenant, token_id, left),
            )
    async with components_of(mesh.settings) as components:
        await make_sweeper(components, mesh.settings).forget_revocations()
    async with session_database.transaction(mesh.tenant) as connection:
        rows = await (await connection.execute("select token_id from revoked_tokens")).fetchall()
    assert [row["token_id"] for row in rows] == ["valid"]


def test_each_token_has_an_id_of_its_own(tokens: TokenMinter) -> None:
    made = {id_of(tokens.client_token("acme", "x", HOUR)) for _ in range(10)}
    assert len(made) == 10
