"""The state of what a process needs from others: its database, its object store, other services.

A state is for operators. It never decides whether a replica serves: see ADR 21.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import Clock, monotonic_seconds, utc_now

POSTGRESQL = "postgresql"
"""The name of the service's own database, as a dependency."""

_INTERVAL_SECONDS = 10.0
_OFTENER_WHEN_DOWN = 10  # So that the return of a dependency is soon seen.
_TICK_SECONDS = 1.0
_PROBE_SECONDS = 4.0  # A backstop: each probe has shorter timeouts of its own.


class DependencyFault(StrEnum):
    """The reason for which a dependency is down."""

    UNREACHABLE = "UNREACHABLE"
    TIMEOUT = "TIMEOUT"
    NOT_SERVING = "NOT_SERVING"
    READ_ONLY = "READ_ONLY"
    CREDENTIALS_REFUSED = "CREDENTIALS_REFUSED"
    CREDENTIALS_MISSING = "CREDENTIALS_MISSING"
    NOT_ISOLATED = "NOT_ISOLATED"
    FAILED = "FAILED"


class DependencyDown(Exception):
    """A probe raises it if the dependency cannot be used."""

    def __init__(self, fault: DependencyFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class DependencyStatus:
    """The state of one dependency since `since_time`.

    `is_up` is None before the first probe. The last fault remains when the dependency is up again,
    but not from the time before it was up for the first time: a process often starts before what it
    needs.
    """

    name: str
    is_up: bool | None
    since_time: datetime
    last_fault: DependencyFault | None = None
    last_fault_time: datetime | None = None
    was_up: bool = False


Probe = Callable[[], Awaitable[None]]
"""Return if the dependency can be used. Raise DependencyDown otherwise."""

OnChange = Callable[[DependencyStatus, DependencyStatus], Awaitable[None]]
"""Called with the status before and after a change of `is_up`."""


def status_after(before: DependencyStatus, fault: DependencyFault | None, now: datetime) -> DependencyStatus:
    """Return the status after a probe. `since_time` changes only with the state."""
    is_up = fault is None
    since_time = before.since_time if before.is_up is is_up else now
    if fault is not None:
        return replace(before, is_up=False, since_time=since_time, last_fault=fault, last_fault_time=now)
    if before.was_up:
        return replace(before, is_up=True, since_time=since_time)
    return DependencyStatus(before.name, True, since_time, was_up=True)


@dataclass(slots=True, eq=False)
class _Watched:
    status: DependencyStatus
    probe: Probe
    interval_seconds: float
    probed_at: float = 0.0  # A monotonic time.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_due(self, now: float) -> bool:
        pause = self.interval_seconds if self.status.is_up else self.interval_seconds / _OFTENER_WHEN_DOWN
        return self.status.is_up is None or now - self.probed_at >= pause


class DependencyWatch:
    """Probes the dependencies of a process, at intervals and on demand.

    Probes run beside the requests and never in their way.
    """

    def __init__(self, *, clock: Clock = utc_now) -> None:
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._listeners: list[OnChange] = []

    def on_change(self, listener: OnChange) -> None:
        """Call the listener after each change of a state, also after the first probe."""
        self._listeners.append(listener)

    @contextmanager
    def watching(
        self, name: str, probe: Probe, *, interval_seconds: float = _INTERVAL_SECONDS
    ) -> Iterator[None]:
        """Include the dependency for the block. A second one of its name replaces the first."""
        watched = _Watched(DependencyStatus(name, None, self._clock()), probe, interval_seconds)
        self._watched[name] = watched
        try:
            yield
        finally:
            if self._watched.get(name) is watched:
                del self._watched[name]

    @property
    def statuses(self) -> list[DependencyStatus]:
        """The status of each dependency, by name."""
        return [watched.status for _, watched in sorted(self._watched.items())]

    async def look(self) -> list[DependencyStatus]:
        """Probe every dependency now, at most once at a time, and return the statuses."""
        await asyncio.gather(*(self._look_at(watched) for watched in self._watched.values()))
        return self.statuses

    @asynccontextmanager
    async def periodic(self) -> AsyncIterator[None]:
        """Probe each dependency at its interval during the block."""
        task = asyncio.create_task(self._look_forever(), name="watch dependencies")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look_forever(self) -> None:
        while True:
            now = monotonic_seconds()
            due = [watched for watched in self._watched.values() if watched.is_due(now)]
            await asyncio.gather(*map(self._look_at, due))
            raise_if_cancelled()
            await asyncio.sleep(_TICK_SECONDS)

    async def _look_at(self, watched: _Watched) -> None:
        asked_at = monotonic_seconds()
        async with watched.lock:
            if watched.probed_at > asked_at:
                return  # Another caller has just probed it.
            fault = await _fault_of(watched.probe)
            watched.probed_at = monotonic_seconds()
            before = watched.status
            watched.status = after = status_after(before, fault, self._clock())
            if before.is_up is not after.is_up:
                for listener in self._listeners:
                    await listener(before, after)


async def _fault_of(probe: Probe) -> DependencyFault | None:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await probe()
    except DependencyDown as down:
        return down.fault
    except TimeoutError:
        return DependencyFault.TIMEOUT
    except Exception:  # noqa: BLE001 - a defect of a probe must not end the watch
        return DependencyFault.FAILED
    return None
