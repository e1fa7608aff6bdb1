"""PostgreSQL plans the most frequent statements once, and not at each call."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS, open_database
from spawnmesh_session.store import run_queue
from spawnmesh_session.store.run_queue import ServedRuns

from tests.support.session.grown import Grown, grown_database
from tests.support.session.plans import COUNTED, REGIMES

# The driver prepares a statement at its sixth call, and the server plans the next five for their
# values before it compares these plans with the one for any values.
TAKES = 20
_PLANS = """
select generic_plans, custom_plans from pg_prepared_statements where statement like '%%with served as%%'
"""


@pytest.fixture(scope="module", params=[COUNTED[name] for name in REGIMES], ids=REGIMES)
def grown(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[Grown]:
    others, size, _ = request.param
    with grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as database:
        yield database


@pytest.mark.parametrize(
    "served",
    [ServedRuns(["SUBAGENT"]), ServedRuns(["EXTERNAL", "SUBAGENT"])],
    ids=["one runtime", "both runtimes"],
)
async def test_takes_of_a_runner_of_all_tenants_are_planned_once(grown: Grown, served: ServedRuns) -> None:
    async with open_database(grown.app_dsn, name="test plans", max_connections=1) as database:
        for _ in range(TAKES):
            await run_queue.take_claimable_runs(database, 4, timedelta(minutes=1), served)
        [[plans]] = await database.transact(ALL_TENANTS, (_PLANS, {}))
    assert plans["custom_plans"] == 5
    assert plans["generic_plans"] >= TAKES - 5 - 6
