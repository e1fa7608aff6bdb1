"""What a pool of connections tells of itself, named as the OpenTelemetry conventions have it."""

import asyncio
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)


class PoolMetrics:
    """Of one pool, the only one of its meter."""

    def __init__(self, meter: Meter, pool_name: str) -> None:
        self._count = 0
        self._of_pool = {"db.client.connection.pool.name": pool_name}
        self._of_system = {"db.system.name": "postgresql"}
        self._waits = meter.create_histogram(
            "db.client.connection.wait_time",
            unit="s",
            description="How long work waited for a connection of the pool.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._operations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="How long work had a connection: transactions from their begin to their commit.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.count",
            callbacks=[self._in_use],
            unit="{connection}",
            description="Connections that are in use.",
        )
        self._timeouts = meter.create_counter(
            "db.client.connection.timeouts",
            unit="{timeout}",
            description="Work that was refused for want of a connection.",
        )
        self._max = meter.create_up_down_counter(
            "db.client.connection.max", unit="{connection}", description="The most connections that the pool may have."
        )

    def opened(self, max_connections: int) -> None:
        """The pool may have so many connections."""
        self._max.add(max_connections, self._of_pool)

    def taken(self) -> None:
        """Somebody got a connection."""
        self._count += 1

    def given_back(self, *, waited_seconds: float, had_seconds: float) -> None:
        """Somebody is done with a connection. Recorded as soon as they wait for something else: their answer is not to wait for this."""
        self._count -= 1
        asyncio.get_running_loop().call_soon(self._record, waited_seconds, had_seconds)

    def _record(self, waited_seconds: float, had_seconds: float) -> None:
        self._waits.record(waited_seconds, self._of_pool)
        self._operations.record(had_seconds, self._of_system)

    def timed_out(self) -> None:
        """Somebody waited in vain."""
        self._timeouts.add(1, self._of_pool)

    def _in_use(self, _options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._count, {**self._of_pool, "db.client.connection.state": "used"})
