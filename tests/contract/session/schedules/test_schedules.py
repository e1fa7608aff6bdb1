"""Schedules are read, paused, resumed, deleted and run by their names."""

import asyncio
from typing import Any

import pytest
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import schedule_service_pb2 as service_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.reasons import Reason

from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.schedules import (
    ALLOW,
    DAY,
    SPAWNED,
    Clockwork,
    assert_refused,
)

BY_NAME = {
    "GetSchedule": service_pb.GetScheduleRequest,
    "PauseSchedule": service_pb.PauseScheduleRequest,
    "ResumeSchedule": service_pb.ResumeScheduleRequest,
    "ListScheduleFirings": service_pb.ListScheduleFiringsRequest,
    "RunSchedule": lambda name: service_pb.RunScheduleRequest(name=name, request_id="r"),
    "DeleteSchedule": service_pb.DeleteScheduleRequest,
}


@pytest.mark.parametrize("rpc", [rpc for rpc in BY_NAME if rpc != "DeleteSchedule"])
async def test_a_schedule_that_does_not_exist_or_is_of_another_tenant(clockwork: Clockwork, rpc: str) -> None:
    await clockwork.put("0 9 * * *")
    other = Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings)
    await other.create_tenant()
    for name, tenant in (("another", ""), ("nightly", other.tenant), ("nightly", "t-no-such")):
        error = await clockwork.refusal(rpc, BY_NAME[rpc](name=name), tenant)
        assert error.reason in (Reason.NOT_FOUND, Reason.UNKNOWN_TENANT)
    assert await clockwork.sessions() == []


@pytest.mark.parametrize("rpc", BY_NAME)
@pytest.mark.parametrize("name", ["", "a" * 64, "a\0b"])
async def test_a_malformed_name(clockwork: Clockwork, rpc: str, name: str) -> None:
    error = await clockwork.refusal(rpc, BY_NAME[rpc](name=name))
    assert_refused(error, Reason.INVALID_REQUEST)


async def test_GetSchedule__has_the_newest_firing(clockwork: Clockwork) -> None:
    created = await clockwork.put_daily(overlap=ALLOW)
    assert await clockwork.get() == created
    await clockwork.pass_time(2 * DAY)
    await clockwork.fire()
    newest = (await clockwork.history())[0]
    assert (await clockwork.get()).last_firing == newest
    manual = await clockwork.run()
    found = await clockwork.get()
    assert found.last_firing == manual
    assert (found.etag, found.upcoming_times) == (created.etag, created.upcoming_times)


async def test_PauseSchedule__nothing_is_fired_and_nothing_missed(clockwork: Clockwork) -> None:
    created = await clockwork.put_daily()
    paused = await clockwork.pause()
    assert (paused.paused, list(paused.upcoming_times), paused.etag != created.etag) == (True, [], True)
    assert await clockwork.jobs() == []
    await clockwork.pass_time(3 * DAY)
    await clockwork.fire()
    assert (await clockwork.jobs(), await clockwork.history()) == ([], [])
    resumed = await clockwork.resume()
    assert resumed.upcoming_times == created.upcoming_times
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.history() == []
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]


async def test_PauseSchedule__is_idempotent(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    assert await clockwork.pause() == await clockwork.pause()


async def test_PauseSchedule__what_waits_to_be_fired_is_dropped(clockwork: Clockwork) -> None:
    await clockwork.put_daily(overlap=ALLOW)
    await clockwork.pass_time(3 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
    await clockwork.pause()
    await clockwork.resume()
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]


async def test_PauseSchedule__sessions_go_on(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    fired = await clockwork.run()
    await clockwork.pause()
    assert await clockwork.is_going_on(fired.session_id)


async def test_ResumeSchedule__is_idempotent_and_moves_no_due_time(clockwork: Clockwork) -> None:
    created = await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    assert await clockwork.resume() == created
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]


async def test_ResumeSchedule__at_the_same_time_as_pauses(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    await asyncio.gather(*(call() for _ in range(5) for call in (clockwork.pause, clockwork.resume)))
    found, jobs = await clockwork.get(), await clockwork.jobs()
    assert found.paused == (jobs == []) == (len(found.upcoming_times) == 0)


async def test_DeleteSchedule__history_and_job_are_gone_and_sessions_go_on(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(2 * DAY)
    await clockwork.fire()
    [session] = await clockwork.sessions()
    await clockwork.delete()
    for table in ("schedules", "schedule_firings"):
        assert await clockwork.stored(table) == []
    assert await clockwork.jobs() == []
    assert await clockwork.is_going_on(session.session_id)
    await clockwork.delete()


async def test_DeleteSchedule__the_same_name_again_is_another_schedule(clockwork: Clockwork) -> None:
    first = await clockwork.put_daily()
    manual = await clockwork.run(request_id="the one")
    await clockwork.delete()
    second = await clockwork.put_daily()
    assert second.etag != first.etag
    assert await clockwork.history() == []
    assert not second.HasField("last_firing")
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [fired] = await clockwork.history()
    assert fired.outcome == SPAWNED, "the session of the first one goes on, and is none of the second"
    again = await clockwork.run(request_id="the one")
    assert len({manual.session_id, fired.session_id, again.session_id}) == 3
    assert len({manual.firing_id, fired.firing_id, again.firing_id}) == 3


async def test_DeleteSchedule__etag_differs(clockwork: Clockwork) -> None:
    first = await clockwork.put("0 9 * * *")
    second = await clockwork.update("overlap", overlap=ALLOW)
    request = service_pb.DeleteScheduleRequest(name="nightly", etag=first.etag)
    assert_refused(await clockwork.refusal("DeleteSchedule", request), Reason.ETAG_DIFFERS)
    assert await clockwork.get() == second
    await clockwork.delete(etag=second.etag)
    await clockwork.delete(etag=second.etag)


async def test_DeleteSchedule__of_another_tenant_changes_nothing(clockwork: Clockwork) -> None:
    created = await clockwork.put("0 9 * * *")
    other = Mesh(clockwork.mesh.peer, clockwork.mesh.keys, clockwork.mesh.settings)
    await other.create_tenant()
    await clockwork.call("DeleteSchedule", service_pb.DeleteScheduleRequest(name="nightly"), other.tenant)
    assert await clockwork.get() == created


@pytest.mark.parametrize("paused", [False, True])
async def test_RunSchedule__spawns_now_whatever_goes_on(clockwork: Clockwork, paused: bool) -> None:
    spawn = pb.ScheduledSpawn(task="Sum up.", label="sums", metadata={"team": "red"})
    before = await clockwork.put("0 9 * * *", spawn=spawn)
    if paused:
        before = await clockwork.pause()
    fired = [await clockwork.run(), await clockwork.run()]
    assert [(one.outcome, one.is_manual) for one in fired] == [(SPAWNED, True)] * 2
    assert await clockwork.history() == fired[::-1]
    for one in fired:
        assert one.due_time == one.fire_time
        session = await clockwork.mesh.get(one.session_id)
        assert (session.label, session.metadata) == ("sums", {"team": "red", "schedule": "nightly"})
        assert await clockwork.is_going_on(one.session_id)
    after = await clockwork.get()
    assert (after.etag, after.upcoming_times, after.paused) == (before.etag, before.upcoming_times, paused)


async def test_RunSchedule__a_repeat_returns_the_same_firing(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    first = await clockwork.run(request_id="r" * 128)
    await clockwork.update("spawn.task", spawn=pb.ScheduledSpawn(task="Another."))
    await clockwork.kill(first.session_id)
    assert await clockwork.run(request_id="r" * 128) == first
    await clockwork.delete_session(first.session_id)
    assert await clockwork.run(request_id="r" * 128) == first
    assert await clockwork.history() == [first]


async def test_RunSchedule__a_repeat_at_the_same_time(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    fired = await asyncio.gather(*(clockwork.run(request_id="r") for _ in range(4)))
    assert {one.session_id for one in fired} == {(await clockwork.sessions())[0].session_id}
    assert [*fired] == [fired[0]] * 4 == [*await clockwork.history()] * 4


async def test_RunSchedule__a_repeat_after_a_change_whose_result_was_not_written(
    clockwork: Clockwork,
) -> None:
    """As if the process had died after the spawn."""
    await clockwork.put("0 9 * * *")
    first = await clockwork.run(request_id="r")
    await clockwork.execute("delete from session.schedule_firings where tenant_id = %(tenant)s")
    await clockwork.update("spawn.task", spawn=pb.ScheduledSpawn(task="Another."))
    again = await clockwork.run(request_id="r")
    assert (again.firing_id, again.session_id) == (first.firing_id, first.session_id)
    assert await clockwork.history() == [again]


async def test_RunSchedule__the_same_request_id_of_two_schedules(clockwork: Clockwork) -> None:
    for name in ("a", "b"):
        await clockwork.put("0 9 * * *", name=name)
    fired = [await clockwork.run(name, request_id="r") for name in ("a", "b")]
    assert len({one.session_id for one in fired}) == len({one.firing_id for one in fired}) == 2


@pytest.mark.parametrize("request_id", ["", "a\0b", "r" * 129])
async def test_RunSchedule__a_malformed_request_id(clockwork: Clockwork, request_id: str) -> None:
    await clockwork.put("0 9 * * *")
    request = service_pb.RunScheduleRequest(name="nightly", request_id=request_id)
    assert_refused(await clockwork.refusal("RunSchedule", request), Reason.INVALID_REQUEST)
    assert await clockwork.history() == []


async def test_RunSchedule__a_full_queue_leaves_no_history(mesh: Mesh, postgres: Any) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_queued_run_count=1))
    clockwork = Clockwork(own, postgres)
    await clockwork.put("0 9 * * *")
    first = await own.spawn()
    request = service_pb.RunScheduleRequest(name="nightly", request_id="r")
    assert_refused(await clockwork.refusal("RunSchedule", request), Reason.RUN_QUEUE_FULL)
    assert await clockwork.history() == []
    assert not (await clockwork.get()).HasField("last_firing")
    await clockwork.kill(first.session_id)
    assert (await clockwork.run(request_id="r")).outcome == SPAWNED


async def test_RunSchedule__a_service_that_is_away_leaves_no_history(
    clockwork: Clockwork, open_mesh: OpenMesh
) -> None:
    await clockwork.put("0 9 * * *")
    async with open_mesh(elsewhere={"transcript": "127.0.0.1:1"}) as broken:
        broken.tenant = clockwork.mesh.tenant
        request = service_pb.RunScheduleRequest(name="nightly", request_id="r")
        error = await Clockwork(broken, clockwork.postgres).refusal("RunSchedule", request)
    assert_refused(error, Reason.SPAWN_FAILED)
    assert await clockwork.history() == []
    assert (await clockwork.run(request_id="r")).outcome == SPAWNED


async def test_RunSchedule__an_agent_that_was_deleted(clockwork: Clockwork) -> None:
    await clockwork.put("0 9 * * *")
    await clockwork.execute("delete from session.agents where tenant_id = %(tenant)s")
    request = service_pb.RunScheduleRequest(name="nightly", request_id="r")
    assert_refused(await clockwork.refusal("RunSchedule", request), Reason.UNKNOWN_AGENT)
    assert await clockwork.history() == []
