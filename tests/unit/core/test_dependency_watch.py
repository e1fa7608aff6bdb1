"""The states of a process's dependencies."""

import asyncio
from datetime import UTC, datetime, timedelta

from spawnmesh_core.dependency_watch import (
    DependencyDown,
    DependencyFault,
    DependencyStatus,
    DependencyWatch,
    status_after,
)

from tests.support.waiting import eventually

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Dependency:
    """A dependency that tests take down. It counts its probes."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.probe_count = 0

    async def check(self) -> None:
        self.probe_count += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


def test_the_time_of_a_state_is_that_of_its_first_probe_and_the_last_fault_remains() -> None:
    minutes = [NOON + timedelta(minutes=number) for number in range(5)]
    status = DependencyStatus("s3", None, NOON, was_up=True)
    faults = [None, DependencyFault.TIMEOUT, DependencyFault.UNREACHABLE, None, None]
    seen = []
    for fault, now in zip(faults, minutes, strict=True):
        status = status_after(status, fault, now)
        seen.append((status.is_up, status.since_time, status.last_fault, status.last_fault_time))
    assert seen == [
        (True, minutes[0], None, None),
        (False, minutes[1], DependencyFault.TIMEOUT, minutes[1]),
        (False, minutes[1], DependencyFault.UNREACHABLE, minutes[2]),
        (True, minutes[3], DependencyFault.UNREACHABLE, minutes[2]),
        (True, minutes[3], DependencyFault.UNREACHABLE, minutes[2]),
    ]


def test_faults_before_a_dependency_was_up_for_the_first_time_are_forgotten_then() -> None:
    waiting = status_after(DependencyStatus("s3", None, NOON), DependencyFault.UNREACHABLE, NOON)
    assert (waiting.is_up, waiting.last_fault, waiting.was_up) == (False, DependencyFault.UNREACHABLE, False)
    up = status_after(waiting, None, NOON + timedelta(seconds=1))
    assert (up.is_up, up.last_fault, up.last_fault_time, up.was_up) == (True, None, None, True)


async def test_listeners_get_changes_only() -> None:
    watch, dependency, changes = DependencyWatch(), Dependency(), []

    async def note(before: DependencyStatus, after: DependencyStatus) -> None:
        changes.append((before.is_up, after.is_up))

    watch.on_change(note)
    with watch.watching("hook", dependency.check):
        for failure in (
            None,
            None,
            DependencyDown(DependencyFault.NOT_SERVING),
            ValueError("a defect"),
            None,
        ):
            dependency.failure = failure
            await watch.look()
    assert changes == [(None, True), (True, False), (False, True)]
    assert watch.statuses == []


async def test_callers_that_look_at_the_same_time_share_a_probe_each() -> None:
    watch, dependency = DependencyWatch(), Dependency()
    with watch.watching("hook", dependency.check):
        await asyncio.gather(*(watch.look() for _ in range(20)))
        assert dependency.probe_count == 1


async def test_a_watch_notices_a_failure_and_the_return_by_itself() -> None:
    watch, dependency = DependencyWatch(), Dependency()
    with watch.watching("hook", dependency.check, interval_seconds=0.0):
        async with watch.periodic():
            for failure, is_up in (
                (None, True),
                (DependencyDown(DependencyFault.TIMEOUT), False),
                (None, True),
            ):
                dependency.failure = failure
                await eventually(lambda is_up=is_up: watch.statuses[0].is_up is is_up)
