"""A due time is fired once, whatever breaks and whoever else changes the schedule meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from spawnmesh.session.v1 import schedule_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.operations.scheduled_spawns import SpawnScheduled

from tests.support.session.crashing import COMMITTED, Crash, Effects
from tests.support.session.harness import Mesh
from tests.support.session.schedules import (
    ALLOW,
    DAY,
    REPLACE,
    SKIP,
    SPAWNED,
    Clockwork,
    Wrap,
)

Meanwhile = Callable[[Clockwork], Awaitable[Any]]


class LostAnswers(Effects):
    """The answer of the n-th commit is lost. The process goes on."""

    def step(self, name: str) -> None:
        if name != COMMITTED:
            return
        self.count += 1
        if self.count == self.crash_at:
            raise psycopg.OperationalError("the connection was lost")


def after_spawn(what: Callable[[], Awaitable[Any]]) -> Wrap:
    """Let something happen after the spawn, before its result is written."""

    def wrap(spawn: SpawnScheduled) -> SpawnScheduled:
        async def spawn_then(tenant_id: str, request: SpawnSessionRequest) -> Session:
            session = await spawn(tenant_id, request)
            await what()
            return session

        return spawn_then

    return wrap


async def die() -> None:
    raise Crash


async def clockworks(mesh: Mesh, postgres: Any) -> AsyncIterator[Clockwork]:
    """Yield one clockwork after the other, each with a tenant of its own."""
    while True:
        own = Mesh(mesh.peer, mesh.keys, mesh.settings)
        await own.create_tenant()
        yield Clockwork(own, postgres)


async def assert_fired_once(clockwork: Clockwork, *, earlier: int = 0) -> pb.ScheduleFiring:
    """Assert that there is one session for the one due time, and return its firing."""
    await clockwork.make_due()
    await clockwork.fire()
    fired = await clockwork.history()
    assert [one.outcome for one in fired] == [SPAWNED] * (1 + earlier)
    assert {one.session_id for one in fired} == {one.session_id for one in await clockwork.sessions()}
    assert len({one.session_id for one in fired}) == 1 + earlier
    assert "DUE" not in {row["outcome"] for row in await clockwork.stored("schedule_firings")}
    return fired[-1]


@pytest.mark.parametrize("failure", [Effects, LostAnswers])
@pytest.mark.parametrize("overlap", [SKIP, ALLOW, REPLACE])
async def test_a_worker_that_dies_after_any_commit(
    mesh: Mesh, postgres: Any, overlap: "pb.OverlapPolicy.ValueType", failure: type[Effects]
) -> None:
    """The session of a call goes on, or has ended for the policy that would skip."""
    crash_at, has_crashed = 0, True
    async for clockwork in clockworks(mesh, postgres):
        crash_at += 1
        await clockwork.put_daily(overlap=overlap)
        manual = await clockwork.run()
        if overlap == SKIP:
            await clockwork.kill(manual.session_id)
        await clockwork.pass_time(DAY)
        steps = failure(crash_at)
        async with clockwork.attempts(steps=steps) as attempt:
            with suppress(Crash, psycopg.OperationalError):
                await attempt()
        has_crashed = steps.count >= crash_at
        await assert_fired_once(clockwork, earlier=1)
        if not has_crashed:
            break
    assert crash_at > 3


@pytest.mark.parametrize("overlap", [SKIP, ALLOW, REPLACE])
async def test_a_worker_that_dies_after_the_spawn(
    clockwork: Clockwork, overlap: "pb.OverlapPolicy.ValueType"
) -> None:
    await clockwork.put_daily(overlap=overlap)
    await clockwork.pass_time(DAY)
    async with clockwork.attempts(after_spawn(die)) as attempt:
        for _ in range(2):  # The second one finds the session, and spawns none.
            with suppress(Crash):
                await attempt()
    await assert_fired_once(clockwork)


async def change_task(clockwork: Clockwork) -> None:
    await clockwork.update("spawn.task", spawn=pb.ScheduledSpawn(task="Another."))


async def call_it(clockwork: Clockwork) -> None:
    await clockwork.run()


async def end_it(clockwork: Clockwork) -> None:
    for session in await clockwork.sessions():
        await clockwork.delete_session(session.session_id)


@pytest.mark.parametrize("overlap", [SKIP, REPLACE])
@pytest.mark.parametrize("meanwhile", [change_task, call_it, end_it])
async def test_a_worker_that_dies_after_the_spawn_before_something_else_happens(
    clockwork: Clockwork, meanwhile: Meanwhile, overlap: "pb.OverlapPolicy.ValueType"
) -> None:
    await clockwork.put_daily(overlap=overlap)
    await clockwork.pass_time(DAY)
    async with clockwork.attempts(after_spawn(die)) as attempt:
        with suppress(Crash):
            await attempt()
    [session] = await clockwork.sessions()
    await meanwhile(clockwork)
    await clockwork.make_due()
    await clockwork.fire()
    [fired] = [one for one in await clockwork.history() if not one.is_manual]
    assert (fired.outcome, fired.session_id) == (SPAWNED, session.session_id)
    others = [one for one in await clockwork.sessions() if one.session_id != session.session_id]
    assert len(others) == (meanwhile is call_it)


async def test_a_changed_task_waits_for_the_spawn_that_is_in_progress(clockwork: Clockwork) -> None:
    """Another process is at it, or it is undone: the request_id is that of another payload."""
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)
    async with clockwork.attempts(after_spawn(die)) as attempt:
        with suppress(Crash):
            await attempt()
    for state in ("PROVISIONING", "ACTIVE"):
        await clockwork.execute(
            "update session.sessions set state = %(state)s where tenant_id = %(tenant)s", state=state
        )
        if state == "PROVISIONING":
            await change_task(clockwork)
            await clockwork.make_due()
            await clockwork.fire()
            assert await clockwork.history() == []
    await assert_fired_once(clockwork)


async def test_a_claim_that_is_lost_after_the_spawn(clockwork: Clockwork) -> None:
    """Another worker fires and writes the result, and the first one comes too late."""
    await clockwork.put_daily(overlap=REPLACE)
    await clockwork.pass_time(DAY)

    async def another_worker() -> None:
        await clockwork.make_due()
        await clockwork.fire()

    async with clockwork.attempts(after_spawn(another_worker)) as attempt:
        await attempt()
    fired = await assert_fired_once(clockwork)
    assert await clockwork.is_going_on(fired.session_id)


async def test_two_workers_at_once(clockwork: Clockwork) -> None:
    await clockwork.put_daily(overlap=ALLOW)
    await clockwork.pass_time(4 * DAY)
    await asyncio.gather(clockwork.fire(), clockwork.fire())
    await assert_fired_once(clockwork, earlier=3)


async def test_two_workers_with_the_same_job(clockwork: Clockwork) -> None:
    """As if both claims were valid."""
    await clockwork.put_daily(overlap=REPLACE)
    await clockwork.pass_time(DAY)
    async with clockwork.attempts() as first, clockwork.attempts() as second:
        await asyncio.gather(first(), second(), first(), second())
    fired = await assert_fired_once(clockwork)
    assert await clockwork.is_going_on(fired.session_id)


async def change_line(clockwork: Clockwork) -> None:
    await clockwork.update("cron", cron="0 0 1 1 *")


async def pause_it(clockwork: Clockwork) -> None:
    await clockwork.pause()


async def pause_and_resume(clockwork: Clockwork) -> None:
    await clockwork.pause()
    await clockwork.resume()


@pytest.mark.parametrize("meanwhile", [change_task, change_line, pause_it, pause_and_resume])
async def test_a_change_while_a_session_is_spawned(clockwork: Clockwork, meanwhile: Meanwhile) -> None:
    """The session is in the history, and a later due time finds that it goes on."""
    await clockwork.put_daily()
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts(after_spawn(lambda: meanwhile(clockwork))) as attempt:
        await attempt()
    [fired] = await clockwork.history()
    [session] = await clockwork.sessions()
    assert (fired.outcome, fired.session_id) == (SPAWNED, session.session_id)
    [stored] = await clockwork.stored("schedules")
    assert stored["session_ids"] == [session.session_id]


async def test_a_deletion_while_a_session_is_spawned(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(2 * DAY)
    async with clockwork.attempts(after_spawn(clockwork.delete)) as attempt:
        await attempt()
    assert await clockwork.stored("schedule_firings") == []
    [session] = await clockwork.sessions()
    assert await clockwork.is_going_on(session.session_id)


async def test_another_schedule_of_the_name_while_a_session_is_spawned(clockwork: Clockwork) -> None:
    await clockwork.put_daily()
    await clockwork.pass_time(DAY)

    async def replaced() -> None:
        await clockwork.delete()
        await clockwork.put_daily()

    async with clockwork.attempts(after_spawn(replaced)) as attempt:
        await attempt()
    assert await clockwork.history() == []
    assert not (await clockwork.get()).HasField("last_firing")


@pytest.mark.parametrize("meanwhile", [change_task, change_line, pause_and_resume, call_it])
async def test_changes_at_the_same_time_as_a_worker(clockwork: Clockwork, meanwhile: Meanwhile) -> None:
    """Each session is in the history, and each spawned firing has its session."""
    await clockwork.put_daily(overlap=ALLOW)
    await clockwork.pass_time(5 * DAY)
    await asyncio.gather(clockwork.fire(), *(meanwhile(clockwork) for _ in range(3)), clockwork.fire())
    await clockwork.make_due()
    await clockwork.fire()
    history = await clockwork.history()
    assert {one.outcome for one in history} <= {SPAWNED}
    ids = [one.session_id for one in history]
    assert sorted(ids) == [one.session_id for one in await clockwork.sessions()]
    assert len(set(ids)) == len(ids)
    if meanwhile is change_task:
        assert len(ids) == 5


async def test_a_kill_that_was_done_is_not_repeated(clockwork: Clockwork) -> None:
    """The policy REPLACE kills the earlier session, and never the one that it spawned itself."""
    await clockwork.put_daily(overlap=REPLACE)
    manual = await clockwork.run()
    await clockwork.pass_time(DAY)
    async with clockwork.attempts(after_spawn(die)) as attempt:
        with suppress(Crash):
            await attempt()
    fired = await assert_fired_once(clockwork, earlier=1)
    assert await clockwork.is_going_on(fired.session_id)
    killed = (await clockwork.mesh.get(manual.session_id)).latest_run
    assert killed.state == session_pb2.RUN_STATE_KILLED
