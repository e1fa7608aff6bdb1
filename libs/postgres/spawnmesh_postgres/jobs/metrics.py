"""Metrics of background jobs, over all tenants."""

from collections.abc import Iterable, Mapping

from opentelemetry.metrics import Meter

from spawnmesh_postgres.jobs.store import JobCounts


class JobMetrics:
    """Gauges of the table, which every worker sets alike, and counters of this process."""

    def __init__(self, meter: Meter) -> None:
        self._jobs = meter.create_gauge(
            "spawnmesh.jobs",
            unit="{job}",
            description="Background jobs by kind and state: waiting, working, or dead.",
        )
        self._oldest = meter.create_gauge(
            "spawnmesh.jobs.oldest.age",
            unit="s",
            description="Age of the oldest background job that waits, by kind.",
        )
        self._attempts = meter.create_counter(
            "spawnmesh.jobs.attempts",
            unit="{attempt}",
            description="Attempts of background jobs by kind and result: done, again, failed, or dead.",
        )

    def measured(self, counts: Mapping[str, JobCounts], kinds: Iterable[str]) -> None:
        """Set the gauges of these kinds."""
        for kind in kinds:
            found = counts.get(kind, JobCounts())
            for state, count in (
                ("waiting", found.waiting),
                ("working", found.working),
                ("dead", found.dead),
            ):
                self._jobs.set(count, {"spawnmesh.job.kind": kind, "spawnmesh.job.state": state})
            self._oldest.set(found.oldest_seconds, {"spawnmesh.job.kind": kind})

    def attempted(self, kind: str, result: str) -> None:
        """Count an attempt that has ended."""
        self._attempts.add(1, {"spawnmesh.job.kind": kind, "spawnmesh.job.result": result})
