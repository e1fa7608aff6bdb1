"""Of the claims that wait at a replica for the same runs, the first in line looks for them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_session.operations import run_claiming
from spawnmesh_session.rpc.claim_runs import claim_runs
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import run_queue

from tests.support.held_database import settle
from tests.support.session.harness import Mesh
from tests.support.session.queue_notices import until_listening
from tests.support.session.tables import superuser
from tests.support.session.worker import dependencies_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("empty_queue")

LONG_SECONDS = 60.0


class Replica:
    """A replica whose looks for runs are counted. Claims look when they are told, and never poll."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self.look_count = 0

    def claim(self, wait_seconds: float = LONG_SECONDS) -> "asyncio.Task[run_pb.ClaimRunsResponse]":
        wait = Duration()
        wait.FromMilliseconds(int(wait_seconds * 1000))
        request = run_pb.ClaimRunsRequest(runner_id="runner", max_run_count=1, wait=wait)
        return asyncio.create_task(claim_runs(request, Caller(CallerKind.RUNNER, "runner"), self._deps))


@pytest.fixture
async def replica(mesh: Mesh, postgres: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    async with dependencies_of(mesh.settings) as deps:
        await until_listening(deps.listener, postgres)
        replica, take = Replica(deps), run_queue.take_claimable_runs

        async def counted(*arguments: Any, **options: Any) -> Any:
            replica.look_count += 1
            return await take(*arguments, **options)

        monkeypatch.setattr(run_queue, "take_claimable_runs", counted)
        monkeypatch.setattr(run_claiming, "_POLL_SECONDS", 2 * LONG_SECONDS)
        monkeypatch.setattr(run_claiming, "_CONTENDED_POLL_SECONDS", 2 * LONG_SECONDS)
        yield replica


async def cancel(*claims: "asyncio.Task[run_pb.ClaimRunsResponse]") -> None:
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)


def sessions_of(answer: run_pb.ClaimRunsResponse) -> list[str]:
    return [held.session.session_id for held in answer.runs]


async def test_ClaimRuns__a_queued_run_wakes_one_of_the_claims_that_wait(
    mesh: Mesh, replica: Replica
) -> None:
    waiting = [replica.claim() for _ in range(10)]
    await eventually(lambda: replica.look_count == 1)
    await settle()
    assert replica.look_count == 1
    for place in range(3):
        before = replica.look_count
        session = await mesh.spawn()
        assert sessions_of(await waiting[place]) == [session.session_id]
        # The first one finds the run, and the next one finds nothing.
        await eventually(lambda before=before: replica.look_count >= before + 2)
        await settle()
        assert replica.look_count == before + 2
    await settle()
    assert not any(claim.done() for claim in waiting[3:])
    await cancel(*waiting)


async def test_ClaimRuns__the_next_claim_is_the_first_when_one_goes_away(
    mesh: Mesh, replica: Replica
) -> None:
    gone, left = replica.claim(), replica.claim()
    await eventually(lambda: replica.look_count == 1)
    await cancel(gone)
    session = await mesh.spawn()
    assert sessions_of(await left) == [session.session_id]


async def test_ClaimRuns__a_claim_that_waits_in_line_until_its_end_looks_once(replica: Replica) -> None:
    first = replica.claim()
    await eventually(lambda: replica.look_count == 1)
    assert sessions_of(await replica.claim(wait_seconds=0.2)) == []
    assert sessions_of(await replica.claim(wait_seconds=0.0)) == []
    assert replica.look_count == 3
    assert not first.done()
    await cancel(first)


async def test_ClaimRuns__a_claim_that_is_held_up_does_not_hold_up_the_next_one(
    mesh: Mesh, replica: Replica, postgres: Any
) -> None:
    locked = await mesh.spawn()
    async with superuser(postgres) as link:
        async with link.transaction():
            await link.execute(
                "select from session.sessions where tenant_id = %s and session_id = %s for update",
                (mesh.tenant, locked.session_id),
            )
            stuck = replica.claim()
            await eventually(lambda: replica.look_count == 1)
            free = replica.claim()
            other = await mesh.spawn()
            assert sessions_of(await free) == [other.session_id]
            assert not stuck.done()
        assert sessions_of(await stuck) == [locked.session_id]
