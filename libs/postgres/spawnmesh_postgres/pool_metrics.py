"""Metrics of a connection pool, with the names of the OpenTelemetry conventions."""

import asyncio
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)


class PoolMetrics:
    """The metrics of one pool. A meter has at most one of them."""

    def __init__(self, meter: Meter, pool_name: str) -> None:
        self._count = 0
        self._of_pool = {"db.client.connection.pool.name": pool_name}
        self._of_system = {"db.system.name": "postgresql"}
        self._waits = meter.create_histogram(
            "db.client.connection.wait_time",
            unit="s",
            description="Time that callers waited for a connection of the pool.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._operations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Time that callers used a connection: transactions from begin to commit.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.count",
            callbacks=[self._in_use],
            unit="{connection}",
            description="Connections in use.",
        )
        self._timeouts = meter.create_counter(
            "db.client.connection.timeouts",
            unit="{timeout}",
            description="Callers that got no connection in time.",
        )
        self._timeouts.add(0, self._of_pool)  # Otherwise no alert would see the first one.
        self._max = meter.create_up_down_counter(
            "db.client.connection.max",
            unit="{connection}",
            description="Maximum size of the pool.",
        )

    def opened(self, max_connections: int) -> None:
        """Record the size of the pool."""
        self._max.add(max_connections, self._of_pool)

    def acquired(self) -> None:
        """Count an acquired connection."""
        self._count += 1

    def released(self, *, waited_seconds: float, used_seconds: float) -> None:
        """Record the use of a released connection.

        The values are recorded when the task next waits, so that the answer is not delayed.
        """
        self._count -= 1
        asyncio.get_running_loop().call_soon(self._record, waited_seconds, used_seconds)

    def _record(self, waited_seconds: float, used_seconds: float) -> None:
        self._waits.record(waited_seconds, self._of_pool)
        self._operations.record(used_seconds, self._of_system)

    def timed_out(self) -> None:
        """Count a timeout of a caller that waited for a connection."""
        self._timeouts.add(1, self._of_pool)

    def _in_use(self, _options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._count, {**self._of_pool, "db.client.connection.state": "used"})
