"""Gauges of the live runs and of the retention."""

from opentelemetry.metrics import Meter
from spawnmesh_postgres.database import ALL_TENANTS, Database

from spawnmesh_session.store import run_queue, tenants


class Gauges:
    """Gauges over all tenants; every worker measures the same."""

    def __init__(self, database: Database, meter: Meter) -> None:
        self._database = database
        self._overdue = meter.create_gauge(
            "spawnmesh.session.retention.overdue",
            unit="{tenant}",
            description="Tenants whose pass of the retention is due.",
        )
        self._oldest = meter.create_gauge(
            "spawnmesh.session.queue.oldest.age",
            unit="s",
            description="Age of the oldest run that waits for a runner, by runtime; 0 if none does.",
        )
        self._oldest_approval = meter.create_gauge(
            "spawnmesh.session.approvals.oldest.age",
            unit="s",
            description="Age of the oldest approval that waits for a person; 0 if none does.",
        )
        self._runs = meter.create_gauge(
            "spawnmesh.session.runs",
            unit="{run}",
            description="Runs that have not ended: waiting for a runner, a person or a budget, or held.",
        )

    async def measure(self) -> None:
        """Set the gauges: live runs by state, and overdue passes of the retention."""
        async with self._database.transaction(ALL_TENANTS) as connection:
            overdue = await tenants.count_tenants_to_retain(connection)
            live = await run_queue.count_live_runs(connection)
        self._overdue.set(overdue)
        for runtime, seconds in live.oldest_seconds.items():
            self._oldest.set(seconds, {"spawnmesh.session.runtime": runtime})
        self._oldest_approval.set(live.oldest_approval_seconds)
        for state, count in live.by_state.items():
            self._runs.set(count, {"spawnmesh.session.run.state": state})
