"""Overdue work of one tenant delays no other tenant, and costs only its share."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from psycopg.types.json import Jsonb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS

from tests.support.session.calls import another
from tests.support.session.grown import TENANT, Grown, come_alive, grown_database
from tests.support.session.harness import OpenMesh
from tests.support.session.plans import blocks_touched
from tests.support.session.statements import SQL
from tests.support.session.tables import superuser, sweeping
from tests.support.session.worker import job_worker_of

MANY = 150
RUNS = 80  # More than one page of a sweep.
DUE = 5_000
MAX_BLOCKS = 2_000
# The other tenants that the planner knows, and the sessions of each. With the allowance for each
# tenant, the limit is still below a block for each due entry.
KNOWN = {"never": (0, 0), "tenants of a session": (100, 1), "one tenant": (1, 1000)}
SHARE = 16
_LONG_DUE = """
insert into session.jobs (tenant_id, kind, key, due_time)
select %s, %s, 'gone_' || i, now() - interval '1 day' from generate_series(1, %s) i
"""


async def test_one_sweep_times_out_the_runs_of_all_tenants(open_mesh: OpenMesh) -> None:
    async with open_mesh() as mesh, sweeping(mesh) as sweep:
        await mesh.create_tenant()
        other = another(mesh)
        await other.create_tenant()
        soon = Duration(nanos=1_000_000)
        for _ in range(RUNS):
            last = await mesh.spawn(run_timeout=soon, runtime=session_pb2.RUNTIME_EXTERNAL)
        of_other = await other.spawn(run_timeout=soon)
        await sweep.end_lost_runs()
        for own, session in ((other, of_other), (mesh, last)):
            assert (await own.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_TIMED_OUT


@pytest.mark.parametrize("kind", ["undo_spawn", "clean_up_spawn", "delete_session"])
async def test_jobs_of_all_tenants_are_done(open_mesh: OpenMesh, postgres: Any, kind: str) -> None:
    many, one = (f"t-{uuid4().hex[:12]}" for _ in range(2))
    async with open_mesh() as mesh, superuser(postgres) as link, job_worker_of(mesh.settings) as worker:
        for tenant, count in ((many, MANY), (one, 1)):
            await link.execute(_LONG_DUE, (tenant, kind, count))
        assert await worker.run_due(kind) > MANY
        left = await link.execute(
            "select count(*) from session.jobs where tenant_id = any (%s)", ([many, one],)
        )
        assert await left.fetchone() == (0,)


@pytest.fixture(scope="module", params=KNOWN.values(), ids=list(KNOWN))
def crowded(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[Grown]:
    """A tenant of which 5,000 of each kind are due, and one with a single one of each, due later.

    The planner knows of other tenants at most. The databases' roles exist.
    """
    others, size = request.param
    with grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as grown:
        with psycopg.connect(grown.superuser_dsn, autocommit=True) as link:
            come_alive(link, TENANT, DUE)
            come_alive(link, "t-small", 1)
            for table in ("run_queue", "jobs"):
                link.execute(
                    f"update session.{table} set due_time = now() - interval '1 second'"
                    " where tenant_id = 't-small'"
                )
        yield grown


LOST = {
    "timed out": "update session.run_queue set expire_time = due_time where due_time <= now()",
    "tried by all": "update session.run_queue set attempts_left = 0 where due_time <= now()",
}


def test_a_page_of_what_is_due_costs_a_page_and_has_something_of_everyone(crowded: Grown) -> None:
    page = {
        "kind": "delete_session",
        "limit": 64,
        "share": SHARE,
        "busy": Jsonb({TENANT: 1}),
        "claim_for": "5 seconds",
    }
    assert taken_by_tenant(crowded, "claim_jobs", page) == {TENANT: SHARE - 1, "t-small": 1}
    assert_costs_a_page(crowded, "claim_jobs", page)


@pytest.mark.parametrize("lost", LOST.values(), ids=list(LOST))
def test_a_page_of_lost_runs_costs_a_page_and_has_something_of_everyone(crowded: Grown, lost: str) -> None:
    page = {"limit": 64, "share": SHARE, "again_in": "5 seconds", "lease_ttl": "10 seconds"}
    with psycopg.connect(crowded.superuser_dsn, autocommit=True) as link:
        link.execute(
            "insert into session.service_uptime values (true, now() - interval '1 day', 'infinity')"
            " on conflict do nothing"
        )
        link.execute(lost.encode())
        try:
            assert taken_by_tenant(crowded, "take_lost_runs", page) == {TENANT: SHARE, "t-small": 1}
            assert_costs_a_page(crowded, "take_lost_runs", page)
        finally:
            link.execute(
                "update session.run_queue set attempts_left = 1, expire_time = now() + interval '1 hour'"
            )


def assert_costs_a_page(grown: Grown, name: str, page: dict[str, Any]) -> None:
    """Check that the statement touches far fewer blocks than the tenant has due entries."""
    modes = ("force_custom_plan", "force_generic_plan")
    blocks = {mode: touched(grown, name, page, mode) for mode in modes}
    assert max(blocks.values()) < MAX_BLOCKS, blocks


def touched(grown: Grown, name: str, page: dict[str, Any], mode: str) -> int:
    """The allowance is a few blocks for each tenant, due or not."""
    with psycopg.connect(grown.superuser_dsn) as link:
        tenants = link.execute("select count(*) from session.tenants").fetchone() or (0,)
    return blocks_touched(grown, ALL_TENANTS, name, page, mode) - 16 * int(tenants[0])


def taken_by_tenant(grown: Grown, name: str, page: dict[str, Any]) -> dict[str, int]:
    """Return the number of entries of each tenant on the page, which is rolled back."""
    with psycopg.connect(grown.app_dsn) as link:
        link.execute("select set_config('spawnmesh.tenant', %s, true)", (ALL_TENANTS,))
        rows = link.execute(SQL[name], page).fetchall()
        link.rollback()
    return dict(Counter(row[0] for row in rows))
