"""The claims of a harness are limited, and leave the database to other tenants and to the runners
of the mesh.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import ALL_TENANTS
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.revoked_tokens import revocation_key
from spawnmesh_session.operations import run_claiming
from spawnmesh_session.operations.claim_limits import MAX_CLAIMS_OF_TOKEN
from spawnmesh_session.rpc.claim_runs import claim_runs
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.store import run_queue

from tests.support.held_database import HeldDatabase, settle
from tests.support.serving import client_tokens
from tests.support.session.calls import another
from tests.support.session.harness import Mesh
from tests.support.session.queue_notices import until_listening
from tests.support.session.worker import dependencies_of
from tests.support.waiting import eventually


async def claim(mesh: Mesh, token: str, wait_seconds: float) -> list[run_pb.ClaimedRun]:
    """Claim one run with the token of a harness."""
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1)
    request.wait.FromMilliseconds(int(wait_seconds * 1000))
    with use_token(token):
        return list((await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=90.0)).runs)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__token_of_a_harness_has_a_limited_number_of_claims(mesh: Mesh) -> None:
    minter = client_tokens(mesh.keys)
    token, second = (minter.runner_token("harness", 600, tenants=[mesh.tenant]) for _ in range(2))
    waiting = {asyncio.create_task(claim(mesh, token, 60.0)) for _ in range(MAX_CLAIMS_OF_TOKEN + 1)}
    [refused], waiting = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(MeshError) as caught:
        refused.result()
    assert (caught.value.reason, caught.value.facts["pool"]) == (Reason.POOL_EXHAUSTED, "claims of a token")
    assert caught.value.retry_after_seconds
    # Other tokens are not limited by it: one of the same tenant, and that of a runner of the mesh.
    assert await claim(mesh, second, 0.0) == []
    assert await mesh.claim_any(wait_seconds=0.0) == []
    # Those that wait are woken, and one gets the run.
    session = await mesh.spawn()
    [first], waiting = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [held.session.session_id for held in first.result()] == [session.session_id]
    assert await claim(mesh, token, 0.0) == []
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__runners_of_the_mesh_have_no_limited_number_of_claims(mesh: Mesh) -> None:
    waiting = [mesh.claim_any(wait_seconds=1.0) for _ in range(2 * MAX_CLAIMS_OF_TOKEN)]
    assert await asyncio.gather(*waiting) == [[]] * len(waiting)


def harness(number: int, *tenants: str) -> Caller:
    """Return a harness with a token of its own."""
    key = revocation_key("", f"token-{number}")
    return Caller(CallerKind.RUNNER, "harness", tenants=frozenset(tenants), revocation_key=key)


@asynccontextmanager
async def held_takes(mesh: Mesh) -> AsyncIterator[tuple[Dependencies, HeldDatabase]]:
    """Build what the RPCs share, on a database in which no take begins until it is allowed to."""
    async with dependencies_of(mesh.settings) as own:
        database = HeldDatabase(own.database, ALL_TENANTS)
        stuck: Any = database
        yield replace(own, claimer=replace(own.claimer, database=stuck)), database


def claims(
    deps: Dependencies, callers: Sequence[Caller], wait_seconds: float = 0.0
) -> list["asyncio.Task[run_pb.ClaimRunsResponse]"]:
    wait = Duration()
    wait.FromMilliseconds(int(wait_seconds * 1000))
    request = run_pb.ClaimRunsRequest(runner_id="harness", max_run_count=1, wait=wait)
    return [asyncio.create_task(claim_runs(request, caller, deps)) for caller in callers]


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__claims_of_harnesses_take_a_share_of_the_connections_in_turn(mesh: Mesh) -> None:
    """A harness with many tokens gets one connection, and all harnesses a quarter of them."""
    assert mesh.settings.database_max_connections == 8
    tenants = [another(mesh).tenant for _ in range(3)]
    async with held_takes(mesh) as (deps, database):
        flood = claims(deps, [harness(number, tenants[0]) for number in range(100)])
        await settle()
        assert database.held == 1
        others = claims(deps, [harness(1000 + number, one) for number, one in enumerate(tenants[1:])])
        await settle()
        assert database.held == 2
        own = claims(deps, [Caller(CallerKind.RUNNER, "runner")] * 3)
        await settle()
        assert database.held == 5
        database.go_on.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*own, *others, *flood)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__harness_looks_when_a_run_of_its_tenants_is_queued(
    mesh: Mesh, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, look_count = another(mesh), 0
    await other.create_tenant()
    take = run_queue.take_claimable_runs

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal look_count
        look_count += 1
        return await take(*arguments, **options)

    monkeypatch.setattr(run_queue, "take_claimable_runs", counted)
    monkeypatch.setattr(run_claiming, "_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(run_claiming, "_CONTENDED_POLL_SECONDS", 3600.0)
    async with dependencies_of(mesh.settings) as own:
        await until_listening(own.listener, postgres)
        with own.listener.subscription(run_queue.CHANNEL) as queued:
            [waiting] = claims(own, [harness(1, mesh.tenant)], wait_seconds=50.0)
            await eventually(lambda: look_count == 1)
            await other.spawn()
            assert await queued.wait(60.0)
            await settle()
            assert look_count == 1
            session = await mesh.spawn()
            [held] = (await waiting).runs
            assert held.session.session_id == session.session_id


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__harness_that_leaves_while_it_waits_for_its_turn_takes_nothing(mesh: Mesh) -> None:
    async with held_takes(mesh) as (deps, database):
        first, second = claims(deps, [harness(number, mesh.tenant) for number in range(2)])
        await settle()
        second.cancel()
        await asyncio.wait([second], timeout=60)
        assert second.cancelled()
        database.go_on.set()
        assert not (await first).runs
        [third] = claims(deps, [harness(3, mesh.tenant)])
        assert not (await third).runs
