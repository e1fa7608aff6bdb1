"""Runs that cannot go on now: they wait in the queue, and use no attempt."""

import asyncio
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.domain.runs import FIRST_PAUSE

from tests.support.serving import client_tokens
from tests.support.session.calls import fail, kill
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.tables import sweeping

UNKNOWN_REASON: Any = 9999
AWAY = run_pb.ReleaseDelay(reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, message="S3 does not answer")
SECRET = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x"


async def delay(mesh: Mesh, held: run_pb.ClaimedRun, why: run_pb.ReleaseDelay = AWAY) -> session_pb2.Run:
    request = run_pb.ReleaseRunRequest(epoch=held.run.epoch, delay=why)
    run: session_pb2.Run = (await mesh.run(held, mesh.runs.ReleaseRun, request)).run
    return run


async def change(remains: Remains, changed: str, run_id: str) -> None:
    """Change the run's entry of the queue, as if time had passed."""
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        await link.execute(f"update session.run_queue set {changed} where run_id = %s".encode(), (run_id,))


def seconds_until_next_claim(run: session_pb2.Run) -> float:
    """Return the pause of a run that was just delayed; both times are the database's."""
    return run.delay.not_before_time.ToNanoseconds() / 1e9 - run.queue_time.ToNanoseconds() / 1e9


async def test_ReleaseRun__a_delayed_run_says_why_and_until_when(mesh: Mesh) -> None:
    session = await mesh.spawn()
    run = await delay(mesh, await mesh.claim(session.session_id))
    assert run.state == session_pb2.RUN_STATE_QUEUED
    assert (run.delay.reason, run.delay.message) == (
        reason_pb2.REASON_DEPENDENCY_UNAVAILABLE,
        "S3 does not answer",
    )
    assert run.delay.count == 1
    first = FIRST_PAUSE.total_seconds()
    assert first <= seconds_until_next_claim(run) <= first * 1.25
    assert (await mesh.get(session.session_id)).latest_run == run


async def test_ReleaseRun__a_delayed_run_is_claimed_after_its_pause_and_uses_no_attempt(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    asked = run_pb.ReleaseDelay(
        reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, min_pause=Duration(seconds=600)
    )
    async with open_mesh(max_run_attempts=1) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        for epoch in (1, 2):
            held = await mesh.claim(session.session_id)
            assert (held.run.attempt_count, held.run.epoch) == (1, epoch)
            assert held.run.delay.count == epoch - 1
            run = await delay(mesh, held, asked)
            earlier = await mesh.claim_any(wait_seconds=0.1, limit=64)
            assert run.run_id not in {other.run.run_id for other in earlier}
            await change(remains, "due_time = due_time - interval '900 seconds'", run.run_id)


async def test_ReleaseRun__a_run_whose_lease_ran_out_unclaimed_uses_no_attempt(open_mesh: OpenMesh) -> None:
    async with open_mesh(max_run_attempts=1, lease_ttl_seconds=0.001) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        held = await mesh.claim(session.session_id)
        run = await delay(mesh, held)
        assert (run.state, run.attempt_count) == (session_pb2.RUN_STATE_QUEUED, 0)
        again = await mesh.claim(session.session_id)
        assert (again.run.attempt_count, again.run.epoch) == (1, 2)


async def test_ReleaseRun__the_pause_doubles_and_is_at_least_what_was_asked_for(mesh: Mesh) -> None:
    session = await mesh.spawn()
    await delay(mesh, await mesh.claim(session.session_id))
    second = await delay(mesh, await mesh.claim(session.session_id))
    assert 2 <= seconds_until_next_claim(second) <= 2.5
    asked = run_pb.ReleaseDelay(
        reason=reason_pb2.REASON_ALL_CANDIDATES_FAILED, min_pause=Duration(seconds=90)
    )
    third = await delay(mesh, await mesh.claim(session.session_id), asked)
    assert 90 <= seconds_until_next_claim(third) <= 90 * 1.25
    assert (third.delay.reason, third.delay.message, third.delay.count) == (
        reason_pb2.REASON_ALL_CANDIDATES_FAILED,
        "",
        3,
    )


async def test_ReleaseRun__a_repeat_of_a_delay_changes_nothing(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert await delay(mesh, held) == await delay(mesh, held)


async def test_ReleaseRun__two_delays_at_once_count_as_one(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    one, other = await asyncio.gather(delay(mesh, held), delay(mesh, held))
    assert one == other
    assert one.delay.count == 1


async def test_ReleaseRun__a_delayed_run_has_no_holder(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    await delay(mesh, held)
    with pytest.raises(MeshError) as caught:
        await fail(mesh, held)
    assert caught.value.reason is Reason.RUN_LEASE_LOST


async def test_ReleaseRun__a_delayed_run_can_be_killed(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    await delay(mesh, held)
    assert await kill(mesh, held.session.session_id) == 1
    assert (await mesh.get(held.session.session_id)).latest_run.state == session_pb2.RUN_STATE_KILLED


async def test_ReleaseRun__watchers_see_the_delay(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    await delay(mesh, held)
    await kill(mesh, held.session.session_id)
    request = pb.WatchSessionRequest(session_id=held.session.session_id)
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
        answers = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        events = [answer.session_event async for answer in answers]
    details = [event.detail for event in events if event.run_state == session_pb2.RUN_STATE_QUEUED]
    assert details[-1] == "delayed: DEPENDENCY_UNAVAILABLE"


async def test_sweep__a_delayed_run_ends_at_its_deadline_and_says_why(
    open_mesh: OpenMesh, remains: Remains
) -> None:
    async with open_mesh() as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        asked = run_pb.ReleaseDelay(
            reason=reason_pb2.REASON_PLUGIN_FAILED, message="gate is away", min_pause=Duration(seconds=60)
        )
        run = await delay(mesh, await mesh.claim(session.session_id), asked)
        await change(remains, "expire_time = now()", run.run_id)
        async with sweeping(mesh) as sweep, asyncio.timeout(60):
            while (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_QUEUED:
                await sweep.end_lost_runs()
        run = (await mesh.get(session.session_id)).latest_run
    assert (run.state, run.error_reason) == (session_pb2.RUN_STATE_TIMED_OUT, reason_pb2.REASON_RUN_TIMEOUT)
    assert run.error_message == (
        "the run took longer than its run_timeout; it was delayed once, the last time because of"
        " PLUGIN_FAILED: gate is away"
    )


async def test_ReleaseRun__the_message_of_a_delay_has_no_secret(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(transcripts=TranscriptSettings(mask_secrets=True)))
    held = await own.claim((await own.spawn()).session_id)
    said = run_pb.ReleaseDelay(
        reason=reason_pb2.REASON_DEPENDENCY_UNAVAILABLE, message=f"the key is {SECRET}"
    )
    assert (await delay(own, held, said)).delay.message == "the key is [$redacted:provider_key]"


@pytest.mark.parametrize(
    "wrong",
    [
        run_pb.ReleaseDelay(message="no reason"),
        run_pb.ReleaseDelay(reason=reason_pb2.REASON_RUNNER_ERROR, min_pause=Duration(seconds=-1)),
        run_pb.ReleaseDelay(reason=reason_pb2.REASON_RUNNER_ERROR, min_pause=Duration(seconds=86401)),
        run_pb.ReleaseDelay(reason=UNKNOWN_REASON),
        run_pb.ReleaseDelay(reason=reason_pb2.REASON_RUNNER_ERROR, message="x" * 4097),
    ],
)
async def test_ReleaseRun__malformed_delay_is_refused_and_the_run_is_still_held(
    mesh: Mesh, wrong: run_pb.ReleaseDelay
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    with pytest.raises(MeshError) as caught:
        await delay(mesh, held, wrong)
    assert caught.value.reason is Reason.INVALID_REQUEST
    await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
