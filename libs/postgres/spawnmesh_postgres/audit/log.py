"""Keep the events of a process in memory for a moment, and store them in batches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from opentelemetry._logs import Logger, NoOpLogger
from opentelemetry.metrics import Meter, NoOpMeter
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label

from spawnmesh_postgres.audit import export, store
from spawnmesh_postgres.audit.buffer import AuditBuffer, PendingEvent
from spawnmesh_postgres.audit.chain import MAX_BATCH
from spawnmesh_postgres.audit.metrics import AuditMetrics
from spawnmesh_postgres.database import Database

MAX_EVENTS = 10_000
"""Events that wait in a process, about 10 MB. Further ones are lost and counted."""

_PERIOD_SECONDS = 1.0  # A kill loses the events of this time.
_CLOSE_SECONDS = 5.0
_NO_METER = NoOpMeter("spawnmesh")
_NO_LOGGER = NoOpLogger("spawnmesh")

log = structlog.get_logger()


class AuditLog:
    """Takes events without waiting, stores them about a second later, and then passes them to the
    logger, each with its place in the chain.

    While the database is unavailable, events wait.
    """

    def __init__(
        self, database: Database, meter: Meter, logger: Logger, *, max_events: int, period_seconds: float
    ) -> None:
        self._database = database
        self._logger = logger
        self._metrics = AuditMetrics(meter, lambda: len(self._buffer) + len(self._batch))
        self._buffer = AuditBuffer(max_events, self._metrics.lost)
        self._period_seconds = period_seconds
        self._batch: list[PendingEvent] = []
        self._is_repeat = False
        self._some = asyncio.Event()
        self._many = asyncio.Event()

    def record(self, event: AuditEvent) -> None:
        """Take an event. It is lost, and counted, if too many wait."""
        self._buffer.add(event)
        self._some.set()
        if len(self._buffer) >= MAX_BATCH:
            self._many.set()

    async def store_forever(self) -> None:
        """Store events until cancelled."""
        while True:
            await self._some.wait()
            try:
                async with asyncio.timeout(self._period_seconds):
                    await self._many.wait()
            except TimeoutError:
                pass
            try:
                await self.flush()
            except Exception as error:  # noqa: BLE001 - the events wait for the next attempt.
                raise_if_cancelled()
                log.warning("audit_not_stored", pending=len(self._buffer), error=error_label(error))
                await asyncio.sleep(self._period_seconds)

    async def flush(self) -> None:
        """Store all events that wait. If it fails, none is lost or stored twice later."""
        while self._batch or len(self._buffer):
            if not self._batch:
                self._batch = self._buffer.take(MAX_BATCH)
            events = [pending.as_stored() for pending in self._batch]
            is_repeat, self._is_repeat = self._is_repeat, True
            stored = await store.add_events(self._database, events, is_repeat=is_repeat)
            self._is_repeat = False
            self._metrics.stored(sum(event.call_count for event in events))
            self._batch = []
            for event, digest in stored:
                export.emit(self._logger, event, digest)
        self._some.clear()
        self._many.clear()

    async def close(self) -> None:
        """Store what waits, if the database answers soon."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.flush()
        except Exception as error:  # noqa: BLE001 - the process ends.
            raise_if_cancelled()
            lost = len(self._buffer) + len(self._batch)
            log.error("audit_events_not_stored", count=lost, error=error_label(error))


@asynccontextmanager
async def open_audit_log(
    database: Database,
    meter: Meter = _NO_METER,
    logger: Logger = _NO_LOGGER,
    *,
    max_events: int = MAX_EVENTS,
    period_seconds: float = _PERIOD_SECONDS,
) -> AsyncIterator[AuditLog]:
    """Store events during the block, and the remaining ones at its end."""
    audit = AuditLog(database, meter, logger, max_events=max_events, period_seconds=period_seconds)
    storing = asyncio.create_task(audit.store_forever(), name="store audit events")
    try:
        yield audit
    finally:
        storing.cancel()
        await asyncio.gather(storing, return_exceptions=True)
        await audit.close()
