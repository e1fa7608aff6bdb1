"""Nothing of one tenant, or of one run's family, is seen by another."""

from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import client_tokens, runner_tokens
from tests.support.session.approvals import ask, call_key
from tests.support.session.budgets import Spending
from tests.support.session.harness import Mesh, attachment
from tests.support.session.outputs import publish
from tests.support.session.schedules import Clockwork

TENANT_TABLES = (
    "agents",
    "sessions",
    "runs",
    "inbox_messages",
    "session_events",
    "approvals",
    "output_sets",
    "budgets",
    "model_calls",
    "schedules",
    "schedule_firings",
)


def requests_about(mesh: Mesh, session_id: str) -> list[tuple[Any, Any]]:
    return [
        (mesh.sessions.GetSession, pb.GetSessionRequest(session_id=session_id)),
        (mesh.sessions.WaitSession, pb.WaitSessionRequest(session_id=session_id)),
        (
            mesh.sessions.SendMessage,
            pb.SendMessageRequest(session_id=session_id, request_id="m", text="hello"),
        ),
        (mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id)),
        (
            mesh.sessions.SpawnSession,
            pb.SpawnSessionRequest(request_id="s", task="t", parent_session_id=session_id),
        ),
    ]


async def test_session_of_another_tenant_is_not_found_by_any_call(mesh: Mesh) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    other = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await other.create_tenant()
    for method, request in requests_about(mesh, session.session_id):
        with pytest.raises(MeshError) as caught:
            await other.client(method, request)
        assert (caught.value.reason, caught.value.status) == (Reason.NOT_FOUND, Status.NOT_FOUND)
    watch = pb.WatchSessionRequest(session_id=session.session_id)
    with (
        use_token(client_tokens(mesh.keys).client_token(other.tenant, "test", 60)),
        pytest.raises(MeshError) as caught,
    ):
        await anext(mesh.peer.stream(mesh.sessions.WatchSession, watch, timeout_seconds=60))
    assert caught.value.reason is Reason.NOT_FOUND
    assert list((await other.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())).sessions) == []
    assert (await mesh.get(session.session_id)).latest_run.run_id == session.latest_run.run_id


async def test_run_sees_its_own_family_only(mesh: Mesh) -> None:
    stranger = await mesh.spawn()
    held = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(held)
    seen = await mesh.run(held, mesh.sessions.GetSession, pb.GetSessionRequest(session_id=child.session_id))
    assert seen.session.session_id == child.session_id
    for method, request in requests_about(mesh, stranger.session_id):
        with pytest.raises(MeshError) as caught:
            await mesh.run(held, method, request)
        assert caught.value.reason is Reason.NOT_FOUND
    child_held = await mesh.claim(child.session_id)
    with pytest.raises(MeshError) as caught:
        await mesh.run(
            child_held, mesh.sessions.GetSession, pb.GetSessionRequest(session_id=held.session.session_id)
        )
    assert caught.value.reason is Reason.NOT_FOUND
    listed = await mesh.run(held, mesh.sessions.ListSessions, pb.ListSessionsRequest())
    assert {session.session_id for session in listed.sessions} == {held.session.session_id, child.session_id}


@pytest.mark.parametrize("table", TENANT_TABLES)
async def test_statement_without_where_sees_its_tenant_only(
    mesh: Mesh, session_database: Database, postgres: Any, table: str
) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=5000)
    await spending.admit(held)
    session_id = held.session.session_id
    await mesh.client(
        mesh.sessions.SendMessage, pb.SendMessageRequest(session_id=session_id, request_id="m", text="x")
    )
    await publish(mesh, held)
    await ask(mesh, held, call_key())
    clockwork = Clockwork(mesh, postgres)
    await clockwork.put()
    await clockwork.run()
    other = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await other.create_tenant()
    async with session_database.transaction(mesh.tenant) as connection:
        own = await (await connection.execute(f"select distinct tenant_id from {table}")).fetchall()
    async with session_database.transaction(other.tenant) as connection:
        others = await (await connection.execute(f"select distinct tenant_id from {table}")).fetchall()
    async with session_database.transaction(ALL_TENANTS) as connection:
        everyone = await (await connection.execute(f"select tenant_id from {table}")).fetchall()
    assert [row["tenant_id"] for row in own] == [mesh.tenant]
    assert [row["tenant_id"] for row in others] in ([], [other.tenant])
    assert everyone == []


async def test_every_table_of_ours_is_bound_by_row_level_security(session_database: Database) -> None:
    query = """
        select c.relname, c.relforcerowsecurity and c.relrowsecurity as bound,
               exists (select from pg_index i join pg_attribute a on a.attrelid = c.oid
                       and a.attnum = any (i.indkey) and a.attname = 'tenant_id'
                       where i.indrelid = c.oid and i.indisprimary) as has_tenant
        from pg_class c where c.relnamespace = 'session'::regnamespace and c.relkind = 'r'
          and c.relname !~ '^(_|yoyo)'"""
    async with session_database.transaction(ALL_TENANTS) as connection:
        rows = await (await connection.execute(query)).fetchall()
    assert {row["relname"] for row in rows} >= {*TENANT_TABLES, "tenants", "run_queue", "jobs"}
    unbound = [row["relname"] for row in rows if not row["bound"] or not row["has_tenant"]]
    assert sorted(unbound) == ["service_uptime", "shared_hooks"], "each has one row, which is about no tenant"


async def test_service_cannot_read_another_services_schema(session_database: Database) -> None:
    async with session_database.transaction(ALL_TENANTS) as connection:
        rows = await (
            await connection.execute(
                "select nspname from pg_namespace where has_schema_privilege(oid, 'usage') and nspname !~ '^pg_'"
            )
        ).fetchall()
    assert {row["nspname"] for row in rows} <= {"session", "information_schema"}


async def test_client_cannot_do_what_is_for_operators_and_runners(mesh: Mesh) -> None:
    stub: Any = TenantServiceStub(mesh.peer.channel)
    for method, request in (
        (stub.CreateTenant, tenant_pb.CreateTenantRequest(tenant_id="another")),
        (stub.ListTenants, tenant_pb.ListTenantsRequest()),
        (mesh.runs.ClaimRuns, run_pb.ClaimRunsRequest(runner_id="r", max_run_count=1)),
        (mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=1)),
    ):
        with pytest.raises(MeshError) as caught:
            await mesh.client(method, request)
        assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
    with use_token(runner_tokens(mesh.keys).runner_token()), pytest.raises(MeshError) as caught:
        await mesh.peer.unary(mesh.sessions.ListSessions, pb.ListSessionsRequest(), timeout_seconds=60)
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED


async def test_CreateTenant__again_and_with_other_settings(mesh: Mesh) -> None:
    await mesh.create_tenant()
    with pytest.raises(MeshError) as caught:
        await mesh.create_tenant(settings=TenantSettings(max_spawn_depth=9))
    assert caught.value.reason is Reason.ALREADY_EXISTS
    assert mesh.tenant in {tenant.tenant_id for page in await mesh.tenant_pages() for tenant in page.tenants}


@pytest.mark.parametrize("tenant", ["", "A", "a", "-ab", "ab-", "a" * 40, "a_b", "*"])
async def test_CreateTenant__malformed_id(mesh: Mesh, tenant: str) -> None:
    stub: Any = TenantServiceStub(mesh.peer.channel)
    with (
        use_token(client_tokens(mesh.keys).admin_token("operator", 60)),
        pytest.raises(MeshError) as caught,
    ):
        await mesh.peer.unary(
            stub.CreateTenant, tenant_pb.CreateTenantRequest(tenant_id=tenant), timeout_seconds=60
        )
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.violations[0].field == "tenant_id"
