"""A run token outlives its lease, and changes nothing after the lease is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.domain.runs import RunOutcome, RunState
from spawnmesh_session.store import run_queue, runs
from spawnmesh_session.store.run_queue import ServedRuns

from tests.support.serving import caller_at
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains

Write = Callable[[Mesh, run_pb.ClaimedRun, str], Awaitable[Any]]


async def send(mesh: Mesh, held: run_pb.ClaimedRun, session_id: str) -> Any:
    request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text="not from here")
    return await mesh.run(held, mesh.sessions.SendMessage, request)


async def kill(mesh: Mesh, held: run_pb.ClaimedRun, session_id: str) -> Any:
    return await mesh.run(held, mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))


async def spawn(mesh: Mesh, held: run_pb.ClaimedRun, session_id: str) -> Any:
    return await mesh.spawn_as(held)


WRITES = pytest.mark.parametrize("write", [send, kill, spawn])


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def taken_over(mesh: Mesh, held: run_pb.ClaimedRun) -> run_pb.ClaimedRun:
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    return await mesh.claim(held.session.session_id)


async def refused(writing: Awaitable[Any]) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await writing
    return caught.value


async def inbox_of(mesh: Mesh, held: run_pb.ClaimedRun) -> list[str]:
    waiting = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    return [message.text for message in waiting.messages]


@WRITES
async def test_old_holder_changes_nothing_in_its_own_session(mesh: Mesh, write: Write) -> None:
    old = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    new = await taken_over(mesh, old)
    session_id = new.session.session_id
    error = await refused(write(mesh, old, session_id))
    assert (error.reason, error.facts["epoch"]) == (Reason.RUN_LEASE_LOST, str(new.run.epoch))
    assert await inbox_of(mesh, new) == []
    assert (await mesh.get(session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    await write(mesh, new, session_id)  # Its holder may.


@pytest.mark.parametrize("write", [send, kill])
async def test_old_holder_changes_nothing_in_a_child(mesh: Mesh, write: Write) -> None:
    old = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(old)
    held = await mesh.claim(child.session_id)
    new = await taken_over(mesh, old)
    assert (await refused(write(mesh, old, child.session_id))).reason is Reason.RUN_LEASE_LOST
    assert await inbox_of(mesh, held) == []
    assert (await mesh.get(child.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    await write(mesh, new, child.session_id)


async def test_ReleaseRun__a_runner_that_was_cut_off_gives_its_attempt_back_once(open_mesh: OpenMesh) -> None:
    delayed = run_pb.ReleaseDelay(reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, message="session was away")
    async with open_mesh(lease_ttl_seconds=0.2) as mesh:
        await mesh.create_tenant()
        session_id = (await mesh.spawn()).session_id
        old = await mesh.claim(session_id)
        new = await mesh.claim(session_id)  # Waits until the lease has run out.
        assert (new.run.attempt_count, new.run.epoch) == (2, old.run.epoch + 1)
        for delay, left in ((None, 2), (delayed, 1), (delayed, 1)):
            request = run_pb.ReleaseRunRequest(epoch=old.run.epoch, delay=delay)
            error = await refused(mesh.run(old, mesh.runs.ReleaseRun, request))
            assert error.reason is Reason.RUN_LEASE_LOST
            assert (await mesh.get(session_id)).latest_run.attempt_count == left
        third = await mesh.claim(session_id)
        assert third.run.attempt_count == 2


@WRITES
async def test_holder_of_a_run_that_has_ended_changes_nothing(
    mesh: Mesh, transcript: Peer, write: Write
) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "42"))
    assert (await refused(write(mesh, held, held.session.session_id))).reason is Reason.RUN_LEASE_LOST
    session = await mesh.get(held.session.session_id)
    assert (session.state, session.latest_run.run_id) == (session_pb2.SESSION_STATE_ACTIVE, held.run.run_id)


@pytest.mark.parametrize("write", [send, kill])
async def test_run_reaches_no_session_outside_of_its_family(mesh: Mesh, write: Write) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    other = await mesh.spawn()
    assert (await refused(write(mesh, held, other.session_id))).reason is Reason.NOT_FOUND
    assert (await mesh.get(other.session_id)).latest_run.state == session_pb2.RUN_STATE_QUEUED


@pytest.mark.parametrize("write", [send, kill])
async def test_runner_whose_run_is_being_claimed_waits_and_loses_its_lease(
    mesh: Mesh, remains: Remains, write: Write
) -> None:
    held = await mesh.claim((await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)).session_id)
    named = (held.session.session_id, mesh.tenant)
    async with await psycopg.AsyncConnection.connect(remains.dsn) as claiming:
        for statement in (
            "update session.sessions set last_epoch = last_epoch + 1 where session_id = %s and tenant_id = %s",
            "update session.runs set epoch = epoch + 1 where session_id = %s and tenant_id = %s",
        ):
            await claiming.execute(statement, named)
        writing = asyncio.create_task(write(mesh, held, held.session.session_id))
        done, _ = await asyncio.wait({writing}, timeout=0.5)
        assert not done
        await claiming.commit()
    assert (await refused(writing)).reason is Reason.RUN_LEASE_LOST
    assert (await mesh.get(held.session.session_id)).state == session_pb2.SESSION_STATE_ACTIVE


async def heartbeat(mesh: Mesh, held: run_pb.ClaimedRun) -> run_pb.HeartbeatRunResponse:
    request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    response: run_pb.HeartbeatRunResponse = await mesh.run(held, mesh.runs.HeartbeatRun, request)
    return response


async def claim_anew(connection: Connection, database: Database, tenant: str, run: session_pb2.Run) -> None:
    """Claim the run for another runner, whose take has found its lease expired."""
    async with database.transaction(tenant) as expiring:
        await expiring.execute("update run_queue set due_time = now() where run_id = %s", (run.run_id,))
    ttl = timedelta(minutes=1)
    served = ServedRuns(["SUBAGENT"], tenants=[tenant])
    [taken] = (await run_queue.take_claimable_runs(database, 1, ttl, served)).runs
    assert await runs.claim_run(connection, taken, runner_id="another", lease_ttl=ttl) is not None


async def release(connection: Connection, _database: Database, tenant: str, run: session_pb2.Run) -> None:
    assert await runs.release_run(connection, tenant, run.run_id, run.epoch) is not None


async def end(connection: Connection, _database: Database, tenant: str, run: session_pb2.Run) -> None:
    locked = await runs.lock_run_with_sessions(connection, tenant, run.run_id)
    outcome = RunOutcome(state=RunState.FAILED)
    await runs.end_run(connection, tenant, locked.run, outcome, token_ttl=timedelta(minutes=6))


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (claim_anew, {"state": "RUNNING", "epoch": "2"}),
        (release, {"state": "QUEUED", "epoch": "1"}),
        (end, {"state": "FAILED", "epoch": "1"}),
    ],
)
async def test_HeartbeatRun__waits_for_a_change_of_the_run_and_loses_its_lease(
    mesh: Mesh,
    remains: Remains,
    session_database: Database,
    change: Callable[[Connection, Database, str, session_pb2.Run], Awaitable[None]],
    facts: dict[str, str],
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with session_database.transaction(mesh.tenant) as connection:
        await change(connection, session_database, mesh.tenant, held.run)
        beating = asyncio.create_task(heartbeat(mesh, held))
        done, _ = await asyncio.wait({beating}, timeout=0.5)
        assert not done
    error = await refused(beating)
    assert (error.reason, error.facts) == (Reason.RUN_LEASE_LOST, {"run_id": held.run.run_id, **facts})
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        take = "update session.run_queue set leased = true where run_id = %s"  # As a claim begins.
        await superuser.execute(take, (held.run.run_id,))
    assert (await refused(heartbeat(mesh, held))).facts == error.facts


async def test_HeartbeatRun__is_accepted_after_a_change_of_the_run_that_is_rolled_back(
    mesh: Mesh, session_database: Database
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    with suppress(InterruptedError):
        async with session_database.transaction(mesh.tenant) as connection:
            await end(connection, session_database, mesh.tenant, held.run)
            beating = asyncio.create_task(heartbeat(mesh, held))
            done, _ = await asyncio.wait({beating}, timeout=0.5)
            assert not done
            raise InterruptedError
    assert (await beating).run_token


async def test_parent_and_child_that_kill_themselves_at_once_do_not_wait_for_each_other(mesh: Mesh) -> None:
    for _ in range(5):
        parent = await mesh.claim((await mesh.spawn()).session_id)
        child = await mesh.claim((await mesh.spawn_as(parent)).session_id)
        killing = (kill(mesh, held, held.session.session_id) for held in (child, parent))
        outcomes = await asyncio.gather(*killing, return_exceptions=True)
        lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(
            isinstance(error, MeshError) and error.reason is Reason.RUN_LEASE_LOST for error in lost
        ), lost
        assert {(await mesh.get(held.session.session_id)).latest_run.state for held in (parent, child)} == {
            session_pb2.RUN_STATE_KILLED
        }
