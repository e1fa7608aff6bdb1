"""WatchRevokedTokens: every revocation, once for each position, for services of the mesh alone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from spawnmesh.session.v1 import token_service_pb2 as pb
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.revoking import HOUR, revoke
from tests.support.waiting import eventually


@pytest.fixture
def service(keys: Path) -> TokenMinter:
    return TokenMinter("hook", keys / "hook.pem")


async def responses(
    mesh: Mesh, token: str, after_change: int = 0
) -> AsyncGenerator[pb.WatchRevokedTokensResponse, None]:
    request = pb.WatchRevokedTokensRequest(after_change=after_change)
    stub = TokenServiceStub(mesh.peer.channel)
    with use_token(token):
        async with aclosing(
            mesh.peer.stream(stub.WatchRevokedTokens, request, timeout_seconds=60)
        ) as messages:
            async for message in messages:
                yield message


async def ids_until(mesh: Mesh, token: str, wanted: str, after_change: int = 0) -> tuple[list[str], int]:
    """Read until this id arrives; return the ids of the tenant, and the last position."""
    ids, change = list[str](), 0
    async with asyncio.timeout(60), aclosing(responses(mesh, token, after_change)) as messages:
        async for message in messages:
            ids += [one.token_id for one in message.tokens if one.tenant_id == mesh.tenant]
            change = message.change or change
            if wanted in ids and message.change:
                break
    return ids, change


async def first_ids(mesh: Mesh, token: str, after_change: int) -> list[str]:
    """Return the ids of the tenant in all pages that a stream from this position begins with."""
    ids = list[str]()
    async with asyncio.timeout(60), aclosing(responses(mesh, token, after_change)) as messages:
        async for message in messages:
            ids += [one.token_id for one in message.tokens if one.tenant_id == mesh.tenant]
            if message.change:
                return ids
    raise AssertionError("the stream ended before the last of its first pages")


async def position_behind(mesh: Mesh, token: str, revoked: str) -> int:
    """Return a position behind this id. A position is not while an older transaction is open."""

    async def position() -> int:
        _, change = await ids_until(mesh, token, revoked)
        return 0 if revoked in await first_ids(mesh, token, change) else change

    return await eventually(position)


async def test_WatchRevokedTokens__reports_what_was_and_what_will_be_revoked(
    mesh: Mesh, service: TokenMinter
) -> None:
    own = client_tokens(mesh.keys).client_token(mesh.tenant, "operator", HOUR)
    await revoke(mesh, own, token_id="tok_1")
    reading = asyncio.create_task(ids_until(mesh, service.mesh_token(), "tok_2"))
    await ids_until(mesh, service.mesh_token(), "tok_1")
    await revoke(mesh, own, token_id="tok_2")
    ids, _ = await reading
    assert ids == ["tok_1", "tok_2"]


async def test_WatchRevokedTokens__is_resumed_at_another_replica_without_the_tokens_from_before(
    mesh: Mesh, open_mesh: OpenMesh, service: TokenMinter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A replica that cannot read the database in this time begins with all tokens.
    monkeypatch.setattr("spawnmesh_session.operations.revocation_feed._FIRST_READ_SECONDS", 60.0)
    own = client_tokens(mesh.keys).client_token(mesh.tenant, "operator", HOUR)
    await revoke(mesh, own, token_id="tok_1")
    change = await position_behind(mesh, service.mesh_token(), "tok_1")
    await revoke(mesh, own, token_id="tok_2")
    async with open_mesh() as replica:
        replica.tenant = mesh.tenant
        ids, later = await ids_until(replica, service.mesh_token(), "tok_2", change)
        # A position that this database never had.
        whole, _ = await ids_until(replica, service.mesh_token(), "tok_2", 2**62)
    assert ids == ["tok_2"]
    assert later > change
    assert sorted(whole) == ["tok_1", "tok_2"]


async def test_WatchRevokedTokens__misses_no_transaction_that_is_committed_late(
    mesh: Mesh, service: TokenMinter, session_database: Database
) -> None:
    own = client_tokens(mesh.keys).client_token(mesh.tenant, "operator", HOUR)
    async with session_database.transaction(mesh.tenant) as late:
        await late.execute(
            "insert into revoked_tokens (tenant_id, token_id, is_run, expire_time)"
            " values (%s, 'tok_late', false, now() + interval '1 hour')",
            (mesh.tenant,),
        )
        await revoke(mesh, own, token_id="tok_early")
        _, change = await ids_until(mesh, service.mesh_token(), "tok_early")
    ids, _ = await ids_until(mesh, service.mesh_token(), "tok_late", change)
    assert "tok_late" in ids


async def test_WatchRevokedTokens__reports_more_than_a_page_of_one_transaction(
    mesh: Mesh, service: TokenMinter, session_database: Database
) -> None:
    own = client_tokens(mesh.keys).client_token(mesh.tenant, "operator", HOUR)
    async with session_database.transaction(mesh.tenant) as connection:
        await connection.execute(
            "insert into revoked_tokens (tenant_id, token_id, is_run, expire_time)"
            " select %s, 'tok_' || n, false, now() + interval '1 hour' from generate_series(1, 2500) n",
            (mesh.tenant,),
        )
    await revoke(mesh, own, token_id="tok_last")
    ids, _ = await ids_until(mesh, service.mesh_token(), "tok_last")
    assert len(ids) == len(set(ids)) == 2501


async def test_WatchRevokedTokens__is_for_services_without_a_tenant(mesh: Mesh, service: TokenMinter) -> None:
    tokens = client_tokens(mesh.keys)
    for token in (
        service.service_token(mesh.tenant),
        tokens.admin_token("operator", HOUR),
        tokens.client_token(mesh.tenant, "client", HOUR),
        TokenMinter("session", mesh.keys / "session.pem").mesh_token(),
    ):
        with pytest.raises(MeshError) as refused:
            await anext(responses(mesh, token))
        assert refused.value.reason is Reason.CALLER_NOT_ALLOWED
