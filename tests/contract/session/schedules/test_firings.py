"""The due times of schedules: they are fired once, and stand in the history."""

from datetime import UTC, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError

from tests.support.session.auditing import events_of, operator_of, recorded
from tests.support.session.harness import Mesh
from tests.support.session.remains import REPORT, Remains
from tests.support.session.schedules import (
    ALL,
    ALLOW,
    DAY,
    EVERY_MINUTE,
    LATEST,
    MISSED,
    NONE,
    SKIPPED,
    SPAWNED,
    Clockwork,
    times_of,
)
from tests.support.session.worker import work_once


async def test_a_due_time_spawns_one_session(clockwork: Clockwork) -> None:
    schedule = await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [fired] = await clockwork.history()
    assert (fired.outcome, fired.is_manual) == (SPAWNED, False)
    [due] = times_of([fired])
    assert due == schedule.upcoming_times[0].ToDatetime(tzinfo=UTC) - DAY
    assert fired.fire_time.ToDatetime() > fired.due_time.ToDatetime()
    session = await clockwork.mesh.get(fired.session_id)
    assert session.metadata == {"schedule": "nightly"}
    assert (await clockwork.get()).last_firing == fired
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.history() == [fired]
    assert [one.session_id for one in await clockwork.sessions()] == [fired.session_id]


async def test_the_session_has_what_the_schedule_says(clockwork: Clockwork) -> None:
    spawn = pb.ScheduledSpawn(
        task="Sum up.",
        label="sums",
        mode=session_pb2.SESSION_MODE_SESSION,
        cleanup=session_pb2.CLEANUP_KEEP,
        run_timeout=Duration(seconds=77),
        metadata={"team": "red"},
        budget={"max_model_call_count": 3},
    )
    await clockwork.put_daily(spawn=spawn)
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [session] = await clockwork.sessions()
    assert (session.label, session.metadata) == ("sums", {"team": "red", "schedule": "nightly"})
    assert (session.mode, session.cleanup) == (spawn.mode, spawn.cleanup)
    claimed = await clockwork.mesh.claim(session.session_id)
    assert claimed.run.session_id == session.session_id


async def test_the_job_is_due_with_the_next_due_time(clockwork: Clockwork) -> None:
    schedule = await clockwork.put_daily()
    upcoming = schedule.upcoming_times[0].ToDatetime(tzinfo=UTC)
    for _ in range(2):
        [job] = await clockwork.jobs()
        assert abs(job["due_time"] - upcoming) < timedelta(hours=1)
        await clockwork.pass_time(DAY)
        await clockwork.fire()


async def test_a_due_time_that_is_found_again_is_not_fired_again(clockwork: Clockwork) -> None:
    """As after a clock that was set back."""
    await clockwork.put_daily(overlap=ALLOW)
    for _ in range(2):
        await clockwork.pass_time(DAY)
        await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]
    assert len(await clockwork.sessions()) == 1


async def test_a_due_time_is_fired_in_time_whatever_was_missed(clockwork: Clockwork) -> None:
    """Of a line of every minute, the newest due time is less than a minute old."""
    await clockwork.put(EVERY_MINUTE, catch_up=NONE)
    await clockwork.pass_time(timedelta(minutes=30))
    await clockwork.fire()
    outcomes = await clockwork.outcomes()
    late = outcomes.index(SPAWNED)
    assert late >= 28
    assert outcomes[:late] == [MISSED] * late
    assert set(outcomes[late + 1 :]) <= {SKIPPED}, "a minute may have passed meanwhile"


async def test_the_spawn_and_the_calls_are_in_the_audit_log(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [fired] = await clockwork.history()
    token = operator_of(clockwork.mesh)
    event = await recorded(clockwork.mesh.peer, token, "SpawnSession")
    assert (event.caller_kind, event.subject) == (policy_pb2.CALLER_SERVICE, "session-worker")
    assert list(event.resources) == [f"session_id={fired.session_id}"]
    await clockwork.run()
    await clockwork.pause()
    await clockwork.delete()
    for rpc in ("UpdateSchedule", "RunSchedule", "PauseSchedule", "DeleteSchedule"):
        event = await recorded(clockwork.mesh.peer, token, rpc)
        assert event.subject == "test"
        assert any(one.endswith("name=nightly") for one in event.resources)
    assert len(await events_of(clockwork.mesh.peer, token, method="SpawnSession")) == 1


async def test_the_deletion_of_the_tenant_leaves_nothing(clockwork: Clockwork, remains: Remains) -> None:
    await clockwork.put_daily(overlap=ALLOW)
    await clockwork.put_daily(name="paused")
    await clockwork.pause("paused")
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
    mesh = clockwork.mesh
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await remains.everywhere(mesh.tenant) == REPORT


async def test_a_due_time_of_a_tenant_that_is_deleted_spawns_nothing(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await clockwork.mesh.delete_tenant()
    await clockwork.fire()
    assert await clockwork.stored("sessions") == []


async def test_the_retention_prunes_firings_and_fires_none_anew(
    clockwork: Clockwork, remains: Remains
) -> None:
    own = Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings)
    await own.create_tenant(settings=TenantSettings(archive_after=Duration(seconds=3600)))
    clockwork = Clockwork(own, clockwork.postgres)
    await clockwork.put_daily(catch_up=LATEST)
    await clockwork.pass_time(3 * DAY)
    await clockwork.fire()
    manual = await clockwork.run()
    everything = await clockwork.history()
    assert len(everything) == 4
    await clockwork.execute(
        "update session.schedule_firings set fire_time = fire_time - interval '25 hours'"
        " where tenant_id = %(tenant)s and not is_manual"
    )
    await work_once(own.settings, remains.dsn, own.tenant)
    assert await clockwork.history() == [manual]
    assert (await clockwork.get()).last_firing == manual


async def test_firings_of_other_tenants_are_not_touched(clockwork: Clockwork) -> None:
    other = Clockwork(
        Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings), clockwork.postgres
    )
    await other.mesh.create_tenant()
    await other.put_daily(catch_up=ALL)
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    assert (await other.history(), len(await clockwork.history())) == ([], 1)
    with pytest.raises(MeshError):
        await other.mesh.get((await clockwork.history())[0].session_id)
