"""Due times while an earlier session goes on, and after an outage: overlap and catch-up."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import session_pb2

from tests.support.session.schedules import (
    ALL,
    ALLOW,
    DAY,
    LATEST,
    MISSED,
    NONE,
    REPLACE,
    SKIP,
    SKIPPED,
    SPAWNED,
    Clockwork,
    times_of,
)

POLICIES = (SKIP, ALLOW, REPLACE)


@pytest.mark.parametrize("overlap", POLICIES)
async def test_overlap_with_a_session_that_goes_on(
    clockwork: Clockwork, overlap: "pb.OverlapPolicy.ValueType"
) -> None:
    await clockwork.put_daily(overlap=overlap)
    await clockwork.pass_time(3 * DAY)
    await clockwork.fire()
    third, second, first = await clockwork.history()
    if overlap == SKIP:
        assert [one.outcome for one in (first, second, third)] == [SPAWNED, SKIPPED, SKIPPED]
        assert second.session_id == third.session_id == first.session_id
        assert await clockwork.is_going_on(first.session_id)
        return
    assert [one.outcome for one in (first, second, third)] == [SPAWNED] * 3
    assert len({one.session_id for one in (first, second, third)}) == 3
    going_on = [await clockwork.is_going_on(one.session_id) for one in (first, second, third)]
    assert going_on == [overlap == ALLOW, overlap == ALLOW, True]
    if overlap == REPLACE:
        killed = (await clockwork.mesh.get(first.session_id)).latest_run
        assert killed.state == session_pb2.RUN_STATE_KILLED


@pytest.mark.parametrize("overlap", POLICIES)
@pytest.mark.parametrize("end", ["killed", "deleted", "forgotten", "failed"])
async def test_overlap_with_a_session_that_has_ended(
    clockwork: Clockwork, overlap: "pb.OverlapPolicy.ValueType", end: str
) -> None:
    spawn = pb.ScheduledSpawn(task="a", mode=session_pb2.SESSION_MODE_SESSION)
    await clockwork.put_daily(overlap=overlap, spawn=spawn)
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts() as attempt:
        await attempt()
        [first] = await clockwork.history()
        await end_session(clockwork, first.session_id, end)
        await attempt()
    second = (await clockwork.history())[0]
    assert (second.outcome, second.session_id != first.session_id) == (SPAWNED, True)
    if end == "failed":
        session = await clockwork.mesh.get(first.session_id)
        assert session.state == session_pb2.SESSION_STATE_ACTIVE, "only a session that goes on is killed"


async def end_session(clockwork: Clockwork, session_id: str, end: str) -> None:
    match end:
        case "killed":
            await clockwork.kill(session_id)
        case "deleted":
            await clockwork.delete_session(session_id)
        case "forgotten":
            await clockwork.delete_session(session_id)
            await clockwork.execute("delete from session.sessions where tenant_id = %(tenant)s")
        case _:  # Its run has ended, and the session is open.
            held = await clockwork.mesh.claim(session_id)
            request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR)
            await clockwork.mesh.run(held, clockwork.mesh.runs.FailRun, request)


async def test_overlap_with_the_session_of_a_call(clockwork: Clockwork) -> None:
    await clockwork.put_daily(overlap=SKIP)
    manual = await clockwork.run()
    await clockwork.pass_time(DAY)
    await clockwork.fire()
    [skipped] = await clockwork.history(outcome=SKIPPED)
    assert skipped.session_id == manual.session_id


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (NONE, [MISSED] * 3),
        (LATEST, [MISSED, MISSED, SPAWNED]),
        (ALL, [SPAWNED] * 3),
    ],
)
async def test_catch_up_after_an_outage(
    clockwork: Clockwork, catch_up: "pb.CatchUpPolicy.ValueType", expected: list[Any]
) -> None:
    await clockwork.put_daily(catch_up=catch_up, overlap=ALLOW)
    await clockwork.pass_time(3 * DAY)
    await clockwork.fire()
    assert await clockwork.outcomes() == expected
    assert len(await clockwork.sessions()) == expected.count(SPAWNED)
    history = await clockwork.history()
    assert [bool(one.session_id) for one in history] == [one.outcome == SPAWNED for one in history]
    spawned = sorted((one for one in history if one.session_id), key=lambda one: one.due_time.seconds)
    assert [one.session_id for one in spawned] == sorted(one.session_id for one in spawned), "oldest first"


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (NONE, [MISSED] * 100),
        (LATEST, [MISSED] * 99 + [SPAWNED]),
        (ALL, [SPAWNED] + [SKIPPED] * 99),
    ],
)
async def test_catch_up_after_a_month_of_minutes(
    clockwork: Clockwork, catch_up: "pb.CatchUpPolicy.ValueType", expected: list[Any]
) -> None:
    """The newest hundred, oldest first: the first one goes on while the others are skipped."""
    hour = (await clockwork.now()).hour
    await clockwork.put(f"* {(hour - 5) % 24},{(hour - 4) % 24} * * *", catch_up=catch_up)
    await clockwork.pass_time(31 * DAY)
    await clockwork.fire()
    history = await clockwork.history(page_size=1000)
    assert [one.outcome for one in reversed(history)] == expected
    times = times_of(history)
    assert all(later - earlier == timedelta(minutes=1) for later, earlier in pairwise(times))
    assert (times[0].hour, times[0].minute) == ((hour - 4) % 24, 59)
    await clockwork.make_due()
    await clockwork.fire()
    assert len(await clockwork.history(page_size=1000)) == 100
