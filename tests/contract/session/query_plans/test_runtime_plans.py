"""Waiting runs of one runtime add no cost to claims of another runtime."""

from collections.abc import Iterator

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS

from tests.support.session.grown import TENANT, Grown, come_alive, grown_database
from tests.support.session.plans import COUNTED, REGIMES, blocks_touched
from tests.support.session.statements import SQL

WAITING = 10_000
TAKE = {"lease_ttl": "1 minute", "limit": 4, "reserved": 0, "tenants": None, "agents": None}
BLOCKS_TO_TAKE = 260  # Of each run its row, its place in every index, and the way there.

_OF_REVIEWER = """
    update session.run_queue set agent_id = 'reviewer'
    where tenant_id = %(tenant)s and run_id in (
        select run_id from session.run_queue
        where tenant_id = %(tenant)s and runtime = 'EXTERNAL'
        order by due_time desc limit 3
    )"""


@pytest.fixture(scope="module", params=[COUNTED[name] for name in REGIMES], ids=REGIMES)
def crowded(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[tuple[Grown, list[str]]]:
    """A tenant with 10,000 waiting EXTERNAL runs, then four SUBAGENT runs; and these four.

    The last three of the EXTERNAL runs are of another agent.
    """
    others, size, _ = request.param
    with (
        grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as grown,
        psycopg.connect(grown.superuser_dsn, autocommit=True) as link,
    ):
        waiting = come_alive(link, TENANT, WAITING, external=WAITING - 4)
        link.execute(_OF_REVIEWER, {"tenant": TENANT})
        yield grown, [f"run{session_id[3:]}" for session_id in waiting[-4:]]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    "runtimes", [["SUBAGENT"], ["EXTERNAL"], ["EXTERNAL", "SUBAGENT"], ["OTHER"]], ids="+".join
)
def test_runs_are_taken_without_reading_those_of_other_runtimes(
    crowded: tuple[Grown, list[str]], runtimes: list[str], mode: str
) -> None:
    grown, _ = crowded
    with psycopg.connect(grown.superuser_dsn) as link:
        tenants = link.execute("select count(*) from session.tenants").fetchone() or (0,)
    values = {**TAKE, "runtimes": runtimes}
    touched = blocks_touched(grown, ALL_TENANTS, "take_claimable_runs", values, mode)
    if runtimes == ["OTHER"]:
        assert touched < 20 + 2 * tenants[0], "a look at each tenant, and that was all"
    assert touched < BLOCKS_TO_TAKE + 2 * len(runtimes) * tenants[0]


def test_later_runs_of_one_runtime_are_taken_before_earlier_ones_of_another(
    crowded: tuple[Grown, list[str]],
) -> None:
    grown, run_ids = crowded
    with psycopg.connect(grown.app_dsn) as link:
        link.execute("select set_config('spawnmesh.tenant', %s, true)", (ALL_TENANTS,))
        taken = link.execute(SQL["take_claimable_runs"], {**TAKE, "runtimes": ["SUBAGENT"]}).fetchall()
        link.rollback()
    assert sorted(row[2] for row in taken) == sorted(run_ids)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("agents", [None, ["default"], ["reviewer"], ["reviewer", "writer"]])
@pytest.mark.parametrize("runtime", ["SUBAGENT", "EXTERNAL"])
def test_limited_runner_reads_only_what_it_serves(
    crowded: tuple[Grown, list[str]], runtime: str, agents: list[str] | None, mode: str
) -> None:
    grown, _ = crowded
    values = {**TAKE, "runtimes": [runtime], "tenants": [TENANT], "agents": agents}
    touched = blocks_touched(grown, ALL_TENANTS, "take_claimable_runs", values, mode)
    has_runs = agents in (None, ["default"]) or runtime == "EXTERNAL"
    assert touched < (BLOCKS_TO_TAKE if has_runs else 40)
    nobody = {**values, "tenants": ["no-such-tenant"]}
    assert blocks_touched(grown, ALL_TENANTS, "take_claimable_runs", nobody, mode) < 10
