"""Outages of the session service: no run loses an attempt that only met one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import open_database
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import open_service
from spawnmesh_session.domain.service_uptime import HEARTBEAT_INTERVAL, LONGEST_BREAK
from spawnmesh_session.store import run_queue
from spawnmesh_session.store.run_queue import ServedRuns
from spawnmesh_session.store.runs import claim_run

from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.grown import Grown, grown_database
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.tables import sweeping
from tests.support.waiting import eventually

LEASE = timedelta(seconds=4)
"""Longer than a break that is no outage."""


@pytest.fixture
def own(postgres: Postgres, databases: dict[str, ServiceDsn]) -> Iterator[Grown]:
    """A database in which no replica of another test sends heartbeats."""
    with grown_database(postgres.superuser_dsn, others=0, size=0, count=0) as grown:
        yield grown


@pytest.fixture
async def link(own: Grown) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(own.superuser_dsn, autocommit=True) as link:
        yield link


async def value_of(link: psycopg.AsyncConnection[Any], query: str, *values: Any) -> Any:
    row = await (await link.execute(query.encode(), values)).fetchone()
    return row[0] if row else None


async def serving_since(link: psycopg.AsyncConnection[Any]) -> datetime:
    since: datetime = await value_of(link, "select serving_since from session.service_uptime")
    return since


async def pretend_to_serve_for_long(link: psycopg.AsyncConnection[Any]) -> None:
    await eventually(lambda: serving_since(link))
    await link.execute("update session.service_uptime set serving_since = now() - interval '1 day'")


async def expire(link: psycopg.AsyncConnection[Any], held: run_pb.ClaimedRun) -> None:
    """Let the lease of the run end now: its runner is lost."""
    await link.execute("update session.run_queue set due_time = now() where run_id = %s", (held.run.run_id,))


@asynccontextmanager
async def outage(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any], *, runs: int, max_attempts: int
) -> AsyncIterator[tuple[Mesh, list[run_pb.ClaimedRun]]]:
    """Claim runs, and serve again after an outage of three leases, in which the worker sweeps."""
    settings = {
        "database_url": own.app_dsn,
        "lease_ttl_seconds": LEASE.total_seconds(),
        "max_run_attempts": max_attempts,
    }
    async with open_mesh(**settings) as mesh:
        await mesh.create_tenant()
        sessions = [await mesh.spawn() for _ in range(runs)]
        await pretend_to_serve_for_long(link)
        held = [await mesh.claim(session.session_id) for session in sessions]
    # However long it took until here: the leases end when the service counts as away.
    await link.execute("update session.run_queue set due_time = now() + %s", (LEASE,))
    over = await value_of(link, "select max(due_time) from session.run_queue") + 2 * LEASE
    async with sweeping(mesh) as sweep:

        async def is_over() -> bool:
            assert await sweep.end_lost_runs() == 0
            return bool(await value_of(link, "select now() > %s", over))

        await eventually(is_over)
    async with open_mesh(**settings) as again:
        again.tenant = mesh.tenant

        async def serves_anew() -> bool:
            return await serving_since(link) > over

        await eventually(serves_anew)
        # However slow the machine is: no lease has passed since.
        await link.execute("update session.service_uptime set serving_since = now() + interval '1 hour'")
        yield again, held


async def test_outage_ends_no_run_of_a_runner_that_comes_back_and_ends_that_of_a_lost_one(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any], peers: dict[str, str]
) -> None:
    async with AsyncExitStack() as exits:
        transcript = await exits.enter_async_context(caller_at(peers["transcript"], "transcript"))
        mesh, (held, lost) = await exits.enter_async_context(
            outage(open_mesh, own, link, runs=2, max_attempts=1)
        )
        sweep = await exits.enter_async_context(sweeping(mesh))
        assert await sweep.end_lost_runs() == 0, "the runners had no time to come back"
        await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
        await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "42"))
        run = (await mesh.get(held.session.session_id)).latest_run
        assert (run.state, run.attempt_count) == (session_pb2.RUN_STATE_SUCCEEDED, 1)
        await link.execute("update session.service_uptime set serving_since = now()")

        async def ended() -> session_pb2.Run | None:
            await sweep.end_lost_runs()
            run = (await mesh.get(lost.session.session_id)).latest_run
            return run if run.state == session_pb2.RUN_STATE_FAILED else None

        run = await eventually(ended)
        assert run is not None
        assert (run.error_reason, run.attempt_count) == (reason_pb2.REASON_ATTEMPTS_EXHAUSTED, 1)
        end = await value_of(link, "select end_time from session.runs where run_id = %s", run.run_id)
        assert end - await serving_since(link) >= LEASE


async def test_ClaimRuns__claim_after_an_outage_counts_as_the_same_attempt(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    async with outage(open_mesh, own, link, runs=1, max_attempts=2) as (mesh, [held]):
        again = await mesh.claim(held.session.session_id)
        assert (again.run.attempt_count, again.run.epoch) == (1, 2)
        await pretend_to_serve_for_long(link)
        await expire(link, again)
        last = await mesh.claim(held.session.session_id)
        assert (last.run.attempt_count, last.run.epoch) == (2, 3)
        await expire(link, last)
        async with sweeping(mesh) as sweep:
            assert await sweep.end_lost_runs() == 1
        run = (await mesh.get(held.session.session_id)).latest_run
        assert (run.error_reason, run.attempt_count) == (reason_pb2.REASON_ATTEMPTS_EXHAUSTED, 2)


async def test_ClaimRuns__claim_after_an_outage_can_be_released_and_undone(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    attempts = "select attempts_left from session.run_queue"
    settings = {"database_url": own.app_dsn, "max_run_attempts": 2}
    async with (
        open_mesh(**settings) as mesh,
        open_database(own.app_dsn, name="test", max_connections=1) as database,
    ):
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        await expire(link, held)
        await link.execute("update session.service_uptime set serving_since = now()")
        served = ServedRuns(["SUBAGENT"])
        [taken] = (await run_queue.take_claimable_runs(database, 1, LEASE, served)).runs
        assert (taken.used_attempts, await value_of(link, attempts)) == (0, 1)
        async with database.pipelined(mesh.tenant) as connection:
            await run_queue.undo_take(connection, taken)
        assert await value_of(link, attempts) == 1
        again = await mesh.claim(held.session.session_id)
        assert (again.run.attempt_count, await value_of(link, attempts)) == (1, 1)
        await mesh.run(again, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=again.run.epoch))
        run = (await mesh.get(held.session.session_id)).latest_run
        assert (run.attempt_count, await value_of(link, attempts)) == (0, 2)


async def test_ClaimRuns__claimer_that_died_counts_as_an_attempt(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    """It took the run from the queue, and did not claim it."""
    async with (
        open_mesh(database_url=own.app_dsn, max_run_attempts=2) as mesh,
        open_database(own.app_dsn, name="test", max_connections=1) as database,
    ):
        await mesh.create_tenant()
        session = await mesh.spawn()
        await pretend_to_serve_for_long(link)
        assert (await run_queue.take_claimable_runs(database, 1, LEASE, ServedRuns(["SUBAGENT"]))).runs
        await link.execute("update session.run_queue set due_time = now()")
        held = await mesh.claim(session.session_id)
        assert (held.run.attempt_count, held.run.epoch) == (2, 1)
        await expire(link, held)
        async with sweeping(mesh) as sweep:
            assert await sweep.end_lost_runs() == 1
        run = (await mesh.get(session.session_id)).latest_run
        assert (run.error_reason, run.attempt_count) == (reason_pb2.REASON_ATTEMPTS_EXHAUSTED, 2)


async def test_ReleaseRun__between_take_and_claim_of_another_runner_uses_no_attempt(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    async with (
        open_mesh(database_url=own.app_dsn, max_run_attempts=3) as mesh,
        open_database(own.app_dsn, name="test", max_connections=1) as database,
    ):
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        await pretend_to_serve_for_long(link)
        await expire(link, held)
        [taken] = (await run_queue.take_claimable_runs(database, 1, LEASE, ServedRuns(["SUBAGENT"]))).runs
        await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
        async with database.pipelined(mesh.tenant) as connection:
            assert await claim_run(connection, taken, runner_id="another", lease_ttl=LEASE) is None
        await mesh.claim(held.session.session_id)
        run = (await mesh.get(held.session.session_id)).latest_run
        attempts_left = await value_of(link, "select attempts_left from session.run_queue")
        assert (run.attempt_count, run.epoch, attempts_left) == (1, 2, 2)


async def test_replica_that_drains_counts_as_away(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    """It refuses heartbeats of runs until its last call has ended."""
    async with open_mesh(database_url=own.app_dsn) as mesh:
        settings = mesh.settings
    async with start_process("session", settings) as process, open_service(process, settings) as server:
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await eventually(lambda: value_of(link, "select served_for > '0' from session.served_time"))
        await server.drain_and_stop(0)
        await eventually(lambda: value_of(link, "select served_for = '0' from session.served_time"))


async def test_restart_of_one_of_two_replicas_is_no_outage(
    open_mesh: OpenMesh, own: Grown, link: psycopg.AsyncConnection[Any]
) -> None:
    async with open_mesh(database_url=own.app_dsn) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn()).session_id)
        await pretend_to_serve_for_long(link)
        before = await serving_since(link)
        for _ in range(2):
            async with open_mesh(database_url=own.app_dsn):
                started = await value_of(link, "select now()")
            later = started + LONGEST_BREAK + 2 * HEARTBEAT_INTERVAL

            async def goes_on(later: datetime = later) -> bool:
                return bool(
                    await value_of(link, "select serves_until > %s from session.service_uptime", later)
                )

            await eventually(goes_on)
        assert await serving_since(link) == before
        await expire(link, held)
        again = await mesh.claim(held.session.session_id)
        assert (again.run.attempt_count, again.run.epoch) == (2, 2)
