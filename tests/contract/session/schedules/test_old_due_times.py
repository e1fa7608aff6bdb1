"""Due times that were found and not fired for long, and sessions that go on beside one another."""

from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh_session.domain.schedules import Schedule
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.jobs.schedules import FIRING_TIMEOUT
from spawnmesh_session.operations.scheduled_spawns import ScheduledSpawner, SpawnScheduled

from tests.support.session.crashing import Crash
from tests.support.session.schedules import (
    DAY,
    MISSED,
    NONE,
    REPLACE,
    SKIP,
    SKIPPED,
    SPAWNED,
    Clockwork,
    Wrap,
)


def instead_of_spawns(what: Any) -> Wrap:
    """Let something happen in the place of the spawn."""

    def wrap(_: SpawnScheduled) -> SpawnScheduled:
        async def spawn(tenant_id: str, request: SpawnSessionRequest) -> Session:
            await what()
            raise Crash

        return spawn

    return wrap


async def nothing() -> None:
    return


async def die_before_the_spawn(clockwork: Clockwork) -> None:
    async with clockwork.attempts(instead_of_spawns(nothing)) as attempt:
        try:
            await attempt()
        except Crash:
            return
    raise AssertionError("the worker did not die")


async def test_a_due_time_whose_worker_was_lost_for_long_is_missed(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.update("catch_up", catch_up=NONE)
    await clockwork.execute(
        "update session.schedules set cursor_time = cursor_time - %(time)s where tenant_id = %(tenant)s",
        time=DAY - timedelta(hours=2),
    )
    due = await clockwork.now()
    await clockwork.update("cron", cron=f"{due.minute} {due.hour} * * *")
    await clockwork.pass_time(timedelta(minutes=1))
    await die_before_the_spawn(clockwork)
    assert await clockwork.history() == []
    await clockwork.age_firings(timedelta(hours=2))
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.outcomes() == [MISSED]
    assert await clockwork.sessions() == []


async def test_a_due_time_is_fired_by_the_next_worker(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await die_before_the_spawn(clockwork)
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]
    [stored] = await clockwork.stored("schedules")
    assert stored["busy_until"] is None


async def test_one_worker_at_a_time_fires_a_schedule(clockwork: Clockwork) -> None:
    """A change makes the job due while a worker has it. Another worker leaves it to the first."""
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    await clockwork.execute(
        "update session.schedules set busy_until = now() + %(time)s where tenant_id = %(tenant)s",
        time=FIRING_TIMEOUT,
    )
    async with clockwork.attempts() as attempt:
        again = await attempt()
    assert again is not None
    assert again.after > timedelta(0)
    assert await clockwork.history() == []
    await clockwork.make_due()
    await clockwork.fire()
    assert await clockwork.outcomes() == [SPAWNED]


async def test_no_session_is_skipped_over(clockwork: Clockwork) -> None:
    """The session of a due time goes on, and that of a call has ended."""
    await clockwork.put_daily(overlap=SKIP)
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [first] = await clockwork.history()
    manual = await clockwork.run()
    await clockwork.kill(manual.session_id)
    await clockwork.pass_time(2 * DAY)  # The day before has a due time of its own.
    await clockwork.fire()
    assert SKIPPED in await clockwork.outcomes()
    assert await clockwork.is_going_on(first.session_id)


async def test_all_sessions_that_go_on_are_replaced(clockwork: Clockwork) -> None:
    await clockwork.put_daily(overlap=REPLACE)
    earlier = [await clockwork.run() for _ in range(3)]
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    assert [await clockwork.is_going_on(one.session_id) for one in earlier] == [False] * 3
    *_, newest = await clockwork.sessions()
    assert await clockwork.is_going_on(newest.session_id)


@pytest.mark.parametrize("what", ["pause", "delete"])
async def test_a_schedule_that_stops_before_the_attempt_is_not_fired(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await clockwork.put_daily(overlap=REPLACE)
    earlier = await clockwork.run()
    await clockwork.pass_time(DAY)
    look = ScheduledSpawner._going_on

    async def look_and_stop(spawner: ScheduledSpawner, tenant_id: str, schedule: Schedule) -> list[str]:
        found = await look(spawner, tenant_id, schedule)
        await getattr(clockwork, what)()
        return found

    monkeypatch.setattr(ScheduledSpawner, "_going_on", look_and_stop)
    async with clockwork.attempts() as attempt:
        await attempt()
    assert await clockwork.is_going_on(earlier.session_id)
    assert [one.session_id for one in await clockwork.sessions()] == [earlier.session_id]
