"""A claim first takes runs from the queue and then claims each.

A take whose lease has ended is void, and no claim answers runs whose leases are nearly over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.store import run_queue, runs
from spawnmesh_session.store.run_queue import ServedRuns, TakenRun

from tests.support.serving import runner_tokens
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.tables import rows, superuser
from tests.support.waiting import eventually

LEASE_SECONDS = 9.0
LEASE = timedelta(minutes=1)


async def claim(mesh: Mesh, *, limit: int = 1) -> list[run_pb.ClaimedRun]:
    """Look once for runs of the tenant."""
    request = run_pb.ClaimRunsRequest(runner_id="r", max_run_count=limit)
    with use_token(runner_tokens(mesh.keys).runner_token("r", 600, tenants=[mesh.tenant])):
        return list((await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=90.0)).runs)


async def heartbeat(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))


async def take(mesh: Mesh, database: Database) -> TakenRun:
    """Take a run as a claim does, which claims it later."""
    served = ServedRuns(["SUBAGENT"], tenants=[mesh.tenant])
    [taken] = (await run_queue.take_claimable_runs(database, 1, LEASE, served)).runs
    return taken


async def claim_late(database: Database, taken: TakenRun) -> runs.ClaimedRun | None:
    async with database.pipelined(taken.tenant_id) as connection:
        return await runs.claim_run(connection, taken, runner_id="late", lease_ttl=LEASE)


async def undo(database: Database, taken: TakenRun) -> None:
    async with database.pipelined(taken.tenant_id) as connection:
        await run_queue.undo_take(connection, taken)


async def entry_of(postgres: Any, run_id: str) -> dict[str, Any]:
    query = "select *, due_time > now() as has_lease from session.run_queue where run_id = %s"
    [entry] = await rows(postgres, query, run_id)
    return entry


async def expire(postgres: Any, run_id: str) -> None:
    async with superuser(postgres) as link:
        await link.execute("update session.run_queue set due_time = now() where run_id = %s", (run_id,))


@asynccontextmanager
async def locked(postgres: Any, session: session_pb2.Session) -> AsyncIterator[None]:
    """Hold the lock of the session, as a replica that was stopped in a transaction does."""
    async with superuser(postgres) as link, link.transaction():
        lock = "select from session.sessions where session_id = %s for update"
        await link.execute(lock, (session.session_id,))
        yield


async def waiting_claims(postgres: Any) -> int:
    """Return how many transactions wait for a lock in a statement of a claim."""
    query = """
        select count(*) as waiting from pg_stat_activity
        where wait_event_type = 'Lock' and query like '%%select * from sessions%%for no key update%%'"""
    [found] = await rows(postgres, query)
    return int(found["waiting"])


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__claimer_that_waited_longer_than_its_lease_leaves_the_run_to_the_next_one(
    mesh: Mesh, postgres: Any
) -> None:
    session = await mesh.spawn()
    run_id = session.latest_run.run_id
    async with locked(postgres, session):
        # Runners of the mesh: the claims of harnesses take turns.
        slow = asyncio.create_task(mesh.claim_any(wait_seconds=0.0))
        await eventually(lambda: waits(postgres, 1))
        await expire(postgres, run_id)
        fast = asyncio.create_task(mesh.claim_any(wait_seconds=0.0))
        await eventually(lambda: waits(postgres, 2))
    assert await slow == []
    [held] = await fast
    assert (held.run.run_id, held.run.epoch) == (run_id, 1)
    await heartbeat(mesh, held)
    assert (await mesh.get(session.session_id)).latest_run.epoch == 1


async def waits(postgres: Any, count: int) -> bool:
    return await waiting_claims(postgres) == count


async def test_ClaimRuns__late_claim_or_undo_of_a_void_take_changes_nothing(
    mesh: Mesh, postgres: Any, session_database: Database
) -> None:
    await mesh.spawn()
    taken = await take(mesh, session_database)
    await expire(postgres, taken.run_id)
    [held] = await claim(mesh)
    before = await entry_of(postgres, taken.run_id)
    assert (before["has_lease"], before["epoch"]) == (True, 1)
    await undo(session_database, taken)
    assert await claim_late(session_database, taken) is None
    assert await entry_of(postgres, taken.run_id) == before
    await heartbeat(mesh, held)


async def test_undo_of_a_take_that_is_claimed_changes_nothing(
    mesh: Mesh, postgres: Any, session_database: Database
) -> None:
    """The commit of the claim was not answered. Its run may not be claimed a second time at once."""
    await mesh.spawn()
    taken = await take(mesh, session_database)
    assert await claim_late(session_database, taken) is not None
    before = await entry_of(postgres, taken.run_id)
    await undo(session_database, taken)
    assert await entry_of(postgres, taken.run_id) == before


async def test_HeartbeatRun__runner_that_comes_back_before_the_next_claim_keeps_its_run(
    mesh: Mesh, postgres: Any, session_database: Database
) -> None:
    await mesh.spawn()
    [held] = await claim(mesh)
    await expire(postgres, held.run.run_id)
    taken = await take(mesh, session_database)
    await heartbeat(mesh, held)
    assert await claim_late(session_database, taken) is None
    await heartbeat(mesh, held)


async def test_ClaimRuns__claim_that_must_wait_answers_fresh_leases_and_leaves_the_rest_at_once(
    open_mesh: OpenMesh, postgres: Any
) -> None:
    async with open_mesh(lease_ttl_seconds=LEASE_SECONDS) as mesh:
        await mesh.create_tenant()
        first, blocked, last = [await mesh.spawn() for _ in range(3)]
        async with locked(postgres, blocked):
            answered = [held.session.session_id for held in await claim(mesh, limit=3)]
            assert answered == [first.session_id]
            left = await lease_left(postgres, first.latest_run.run_id)
            assert left > LEASE_SECONDS / 3
            [held] = await claim(mesh)
            assert held.session.session_id == last.session_id, "it is tried before the blocked one"
            assert held.run.attempt_count == 1
        [held] = await claim(mesh)
        assert (held.session.session_id, held.run.attempt_count) == (blocked.session_id, 1)


async def lease_left(postgres: Any, run_id: str) -> float:
    query = "select extract(epoch from due_time - now())::float8 as seconds from session.run_queue"
    [entry] = await rows(postgres, f"{query} where run_id = %s", run_id)
    return float(entry["seconds"])
