"""On any queues, PostgreSQL takes the runs that the domain says."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS
from spawnmesh_session.domain.run_shares import (
    QueueEntry,
    TenantQueue,
    attempts_of_take,
    is_claimable,
    is_held,
    is_lost,
    share_out,
)

from tests.support.session.statements import SQL

LEASE = timedelta(seconds=10)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MAX_ATTEMPTS = 2
RUNTIMES = ("SUBAGENT", "EXTERNAL")
AGENTS = ("writer", "reviewer")

TENANT = """
    insert into tenants (tenant_id, display_name, settings, max_running_run_count, max_queued_run_count,
        run_weight, ready)
    values (%s, '', '{}', %s, 100, %s, true)
"""
ENTRY = """
    insert into run_queue (tenant_id, run_id, due_time, expire_time, again_time, max_attempts,
        attempts_left, leased, runtime, agent_id)
    values (%s, %s, now() + %s, now() + %s, now() + %s, %s, %s, %s, %s, %s)
"""
SERVED = """
    insert into service_uptime (serving_since, serves_until) values (now() - %s, now() + interval '1 hour')
    on conflict (is_only) do update
    set serving_since = excluded.serving_since, serves_until = excluded.serves_until
"""


@dataclass(frozen=True)
class Placed:
    """An entry, with its runtime and its agent."""

    entry: QueueEntry
    runtime: str
    agent: str


@dataclass(frozen=True)
class Owned:
    """A tenant's limits and entries."""

    max_running_run_count: int
    run_weight: int
    placed: tuple[Placed, ...]

    def queue(self, runtimes: list[str], agents: list[str] | None) -> TenantQueue:
        claimable = [
            one.entry
            for one in self.placed
            if one.runtime in runtimes and (agents is None or one.agent in agents)
            if is_claimable(one.entry, NOW)
        ]
        held_count = sum(is_held(one.entry, NOW) for one in self.placed)
        return TenantQueue(self.max_running_run_count, self.run_weight, held_count, claimable)


@st.composite
def entries(draw: st.DrawFn) -> Placed:
    entry = QueueEntry(
        run_id="",
        due_time=NOW + draw(st.sampled_from((-HOUR, -HOUR, -HOUR, HOUR))),
        expire_time=NOW + draw(st.sampled_from((2 * HOUR, 2 * HOUR, 2 * HOUR, 2 * HOUR, timedelta()))),
        attempts_left=draw(st.sampled_from((1, 2, 0))),
        is_leased=draw(st.booleans()),
        again_time=draw(st.sampled_from((None, NOW - HOUR, NOW + HOUR))),
    )
    return Placed(entry, draw(st.sampled_from(RUNTIMES)), draw(st.sampled_from(AGENTS)))


@st.composite
def tenants(draw: st.DrawFn) -> dict[str, Owned]:
    """Up to four tenants. No two entries are due at the same time."""
    drawn = draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 3), st.lists(entries(), max_size=6)),
            min_size=1,
            max_size=4,
        )
    )
    order = iter(draw(st.permutations(range(sum(len(placed) for _, _, placed in drawn)))))
    owned = {}
    for number, (cap, weight, placed) in enumerate(drawn):
        ordered = []
        for one in placed:
            place = next(order)
            due_time = one.entry.due_time + timedelta(seconds=place)
            entry = replace(one.entry, run_id=f"run_share_{place}", due_time=due_time)
            ordered.append(replace(one, entry=entry))
        owned[f"t-share-{number}"] = Owned(cap, weight, tuple(ordered))
    return owned


def fill(link: psycopg.Connection[Any], owned: dict[str, Owned], served_for: timedelta | None) -> None:
    """Write the queues, for the transaction that is rolled back."""
    link.execute("set local search_path = session")
    link.execute("select set_config('spawnmesh.tenant', %s, true)", (ALL_TENANTS,))
    link.execute("delete from service_uptime")
    if served_for is not None:
        link.execute(SERVED, (served_for,))
    for tenant_id, one in owned.items():
        link.execute(TENANT, (tenant_id, one.max_running_run_count, one.run_weight))
        for placed in one.placed:
            entry = placed.entry
            again_in = None if entry.again_time is None else entry.again_time - NOW
            values = (entry.due_time - NOW, entry.expire_time - NOW, again_in)
            state = (MAX_ATTEMPTS, entry.attempts_left, entry.is_leased, placed.runtime, placed.agent)
            link.execute(ENTRY, (tenant_id, entry.run_id, *values, *state))


@pytest.fixture
def link(postgres: Postgres, migrated: dict[str, ServiceDsn]) -> Any:
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as link:
        yield link


any_queues = settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
served_times = st.sampled_from((None, timedelta(), LEASE - timedelta(milliseconds=1), LEASE, HOUR))


@any_queues
@given(
    owned=tenants(),
    served_for=served_times,
    runtimes=st.sampled_from((["SUBAGENT"], list(RUNTIMES))),
    agents=st.sampled_from((None, None, ["writer"], list(AGENTS))),
    limit=st.integers(1, 6),
    data=st.data(),
)
def test_a_claim_takes_the_shares_that_the_domain_says(
    link: psycopg.Connection[Any],
    owned: dict[str, Owned],
    served_for: timedelta | None,
    runtimes: list[str],
    agents: list[str] | None,
    limit: int,
    data: st.DataObject,
) -> None:
    reserved = data.draw(st.integers(0, limit))
    values = {"lease_ttl": LEASE, "limit": limit, "reserved": reserved}
    served = {"runtimes": runtimes, "agents": agents, "tenants": list(owned)}
    with link.transaction(force_rollback=True):
        fill(link, owned, served_for)
        rows = link.execute(SQL["take_claimable_runs"], values | served).fetchall()
        left = link.execute("select run_id, attempts_left from run_queue where leased").fetchall()
    taken = {row["run_id"]: row["used_attempts"] for row in rows if row["run_id"]}
    chosen = share_out([one.queue(runtimes, agents) for one in owned.values()], limit, reserved)
    assert taken == {entry.run_id: attempts_of_take(entry, served_for, LEASE) for entry in chosen}
    assert not any(row["others_took"] for row in rows)
    attempts_left = {row["run_id"]: row["attempts_left"] for row in left}
    assert all(attempts_left[one.run_id] == one.attempts_left - taken[one.run_id] for one in chosen)


@any_queues
@given(owned=tenants(), served_for=served_times)
def test_the_sweep_takes_the_runs_that_are_lost_for_the_domain(
    link: psycopg.Connection[Any], owned: dict[str, Owned], served_for: timedelta | None
) -> None:
    values = {"limit": 1000, "share": 1000, "again_in": "5 seconds", "lease_ttl": LEASE}
    with link.transaction(force_rollback=True):
        fill(link, owned, served_for)
        rows = link.execute(SQL["take_lost_runs"], values).fetchall()
    everything = [placed.entry for one in owned.values() for placed in one.placed]
    lost = {entry.run_id for entry in everything if is_lost(entry, NOW, served_for, LEASE)}
    assert {row["run_id"] for row in rows if row["tenant_id"] in owned} == lost
