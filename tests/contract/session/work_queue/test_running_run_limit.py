"""A tenant never has more leased runs than `max_running_run_count`, whatever claims do at once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.rows import dict_row
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import runner_tokens
from tests.support.session.calls import another
from tests.support.session.grown import grown_database
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.statements import SQL
from tests.support.waiting import eventually


async def tenant(mesh: Mesh, *, cap: int) -> Mesh:
    own = another(mesh)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=cap))
    return own


async def claim(mesh: Mesh) -> list[str]:
    """Look once for SUBAGENT runs of the tenant; return their ids."""
    request = run_pb.ClaimRunsRequest(runner_id="r", max_run_count=8)
    with use_token(runner_tokens(mesh.keys).runner_token("r", 600, tenants=[mesh.tenant])):
        answer = await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60.0)
    return [held.run.run_id for held in answer.runs]


@asynccontextmanager
async def open_take(
    migrated: dict[str, ServiceDsn], mesh: Mesh, runtimes: Sequence[str]
) -> AsyncIterator[tuple[psycopg.AsyncConnection, list[str]]]:
    """Take runs of the tenant, in a transaction that is not committed; yield it and their ids."""
    values = {
        "limit": 1,
        "reserved": 0,
        "lease_ttl": "1 minute",
        "runtimes": list(runtimes),
        "tenants": [mesh.tenant],
        "agents": None,
    }
    async with await psycopg.AsyncConnection.connect(migrated["session"].app, row_factory=dict_row) as link:
        await link.execute("select set_config('spawnmesh.tenant', %s, true)", (ALL_TENANTS,))
        taken = await (await link.execute(SQL["take_claimable_runs"], values)).fetchall()
        yield link, [row["run_id"] for row in taken]
        await link.rollback()


@pytest.mark.parametrize("is_committed", [True, False])
async def test_ClaimRuns__run_that_is_queued_while_a_claim_is_open_does_not_exceed_the_limit(
    mesh: Mesh, migrated: dict[str, ServiceDsn], is_committed: bool
) -> None:
    """The first claim saw fewer runs than the tenant may have at once, and the second one more."""
    own = await tenant(mesh, cap=1)
    first = (await own.spawn(runtime=RUNTIME_EXTERNAL)).latest_run.run_id
    async with open_take(migrated, own, ["EXTERNAL"]) as (link, taken):
        assert taken == [first]
        await own.spawn()
        assert await claim(own) == []
        if is_committed:
            await link.commit()
    assert len(await claim(own)) == (0 if is_committed else 1)


async def test_ClaimRuns__claims_of_a_tenant_that_is_not_at_its_limit_do_not_wait_for_each_other(
    mesh: Mesh, migrated: dict[str, ServiceDsn]
) -> None:
    own = await tenant(mesh, cap=3)
    first, second = [(await own.spawn()).latest_run.run_id for _ in range(2)]
    async with open_take(migrated, own, ["SUBAGENT"]) as (_, taken):
        assert taken == [first]
        assert await claim(own) == [second]


_PAUSED_COUNT = """
create or replace function session.count_leased_runs(p_tenant_id text) returns bigint language plpgsql as $$
declare leased_count bigint;
begin
    select count(*) into leased_count from session.run_queue
    where tenant_id = p_tenant_id and leased and due_time > now();
    perform pg_advisory_xact_lock_shared(4711);
    return leased_count;
end $$
"""


async def test_ClaimRuns__runs_that_were_queued_and_claimed_since_the_claim_looked_are_counted(
    open_mesh: OpenMesh, postgres: Postgres, databases: dict[str, ServiceDsn]
) -> None:
    """The claim is paused after it has counted, in a database of its own."""
    with grown_database(postgres.superuser_dsn, others=0, size=0, count=0) as grown:
        async with (
            open_mesh(database_url=grown.app_dsn) as mesh,
            await psycopg.AsyncConnection.connect(grown.superuser_dsn, autocommit=True) as link,
        ):
            await link.execute(_PAUSED_COUNT.encode())
            own = await tenant(mesh, cap=1)
            await own.spawn()
            await link.execute("select pg_advisory_lock(4711)")
            claiming = asyncio.create_task(claim(own))
            await eventually(lambda: is_paused(link))
            second = (await own.spawn()).latest_run.run_id
            as_claimed = "update session.run_queue set leased = true, due_time = 'infinity' where run_id = %s"
            await link.execute(as_claimed, (second,))
            await link.execute("select pg_advisory_unlock(4711)")
            assert await claiming == []


async def is_paused(link: psycopg.AsyncConnection) -> bool:
    query = "select from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"
    return await (await link.execute(query)).fetchone() is not None
