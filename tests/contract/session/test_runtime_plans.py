"""Runs that wait for one runtime cost those nothing who take another, and those that waited before there were runtimes have theirs."""

from collections.abc import Iterator
from importlib.resources import files
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import EVERY_TENANT
from spawnmesh_postgres.jobs import install_job_tables
from spawnmesh_postgres.roles import Entries, prepare_database

from tests.contract.session.grown import FILL_TENANT, TENANT, Grown, come_alive, dsn_of, grown_database
from tests.contract.session.test_stale_counts import COUNTED, blocks_touched

WAITING = 20_000
BLOCKS_TO_TAKE = 260  # Of each run its row, its place in every index, and the way there.
REGIMES = ("never", "tenants of a session", "one tenant")
MIGRATION = "0011_first_epochs_and_runtimes.sql"
_FOR_EXTERNAL = """
update session.dispatch set runtime = 'EXTERNAL', due_time = now() - interval '1 hour' - random() * interval '1 hour'
where tenant_id = %s and kind = 'RUN' and subject_id <> all (%s)
"""


@pytest.fixture(scope="module", params=[COUNTED[name] for name in REGIMES], ids=REGIMES)
def crowded(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[tuple[Grown, list[str]]]:
    """A tenant where 20,000 runs wait for EXTERNAL and four that came later for SUBAGENT; and these.

    The planner knows of other tenants at most.
    """
    others, size, _ = request.param
    with (
        grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as grown,
        psycopg.connect(grown.superuser_dsn, autocommit=True) as link,
    ):
        run_ids = [f"RUN{session_id[3:]}" for session_id in come_alive(link, TENANT, WAITING)[-4:]]
        link.execute(_FOR_EXTERNAL, (TENANT, run_ids))
        yield grown, run_ids


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("runtimes", [["SUBAGENT"], ["EXTERNAL"], ["EXTERNAL", "SUBAGENT"], ["OTHER"]], ids="+".join)
def test_runs_are_taken_without_reading_those_of_other_runtimes(
    crowded: tuple[Grown, list[str]], runtimes: list[str], mode: str
) -> None:
    grown, _ = crowded
    with psycopg.connect(grown.superuser_dsn) as link:
        tenants = link.execute("select count(*) from session.tenants").fetchone() or (0,)
    values = {"tenant_id": EVERY_TENANT, "lease_ttl": "1 minute", "limit": 4, "runtimes": runtimes}
    touched = blocks_touched(grown, EVERY_TENANT, "take_claimable_runs", values, mode)
    if runtimes == ["OTHER"]:
        assert touched < 20 + 2 * tenants[0], "a look at each tenant, and that was all"
    assert touched < BLOCKS_TO_TAKE + 2 * len(runtimes) * tenants[0]


def test_later_runs_of_one_runtime_are_taken_before_earlier_ones_of_another(crowded: tuple[Grown, list[str]]) -> None:
    grown, run_ids = crowded
    with psycopg.connect(grown.app_dsn) as link:
        taken = link.execute(
            "select run_ids from take_claimable_runs(set_config('spawnmesh.tenant', '*', true), 4, '1 minute', array['SUBAGENT'])"
        ).fetchone()
        link.rollback()
    assert taken is not None
    assert sorted(taken[0]) == sorted(run_ids)


def test_runs_that_waited_before_have_the_runtime_of_their_sessions(
    postgres: Postgres, databases: dict[str, ServiceDsn]
) -> None:
    """The databases' roles exist."""
    database = f"before_{uuid4().hex[:8]}"
    app, owner = (dsn_of(postgres.superuser_dsn, database, role) for role in ("session", "session_owner"))
    superuser = dsn_of(postgres.superuser_dsn, database)
    prepare_database(postgres.superuser_dsn, {"session": Entries(app, owner)})
    folder = files("spawnmesh_session") / "migrations"
    *before, this = [name for name in sorted(file.name for file in folder.iterdir()) if name <= MIGRATION]
    try:
        install_job_tables(owner)
        for name in before:
            apply(owner, name)
        with psycopg.connect(superuser, autocommit=True) as link:
            for tenant in (TENANT, "t-other"):
                for statement in FILL_TENANT:
                    link.execute(statement, {"tenant": tenant})
                first, *_ = come_alive(link, tenant, 3)
                link.execute(
                    "update session.dispatch set subject_id = 'run' || substr(subject_id, 4) where kind = 'RUN'"
                )
                link.execute("update session.sessions set runtime = 'EXTERNAL' where session_id = %s", (first,))
        apply(owner, this)
        with psycopg.connect(superuser) as link:
            rows = link.execute(
                "select tenant_id, runtime, count(*) from session.dispatch where kind = 'RUN' group by 1, 2 order by 1, 2"
            ).fetchall()
        assert rows == [
            (tenant, *count) for tenant in (TENANT, "t-other") for count in [("EXTERNAL", 1), ("SUBAGENT", 2)]
        ]
    finally:
        with psycopg.connect(postgres.superuser_dsn, autocommit=True) as server:
            server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))


def apply(owner: str, name: str) -> None:
    """One migration, as the schema's owner, in a transaction."""
    text = (files("spawnmesh_session") / "migrations" / name).read_text()
    with psycopg.connect(owner) as link:
        link.execute("set local search_path to session")
        link.execute(text.encode())
