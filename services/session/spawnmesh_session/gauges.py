"""Gauges of the live runs and of the work that is overdue."""

from opentelemetry.metrics import Meter
from spawnmesh_postgres.database import ALL_TENANTS, Database

from spawnmesh_session.store import work_queue


class Gauges:
    """Gauges over all tenants; every worker measures the same."""

    def __init__(self, database: Database, meter: Meter) -> None:
        self._database = database
        self._overdue = meter.create_gauge(
            "spawnmesh.session.cleanup.backlog",
            unit="{item}",
            description="Overdue work by kind: spawns to undo, deletions to finish, tenants to purge, "
            "settings to push, events to publish, passes of the retention, and jobs.",
        )
        self._runs = meter.create_gauge(
            "spawnmesh.session.runs",
            unit="{run}",
            description="Runs that have not ended: waiting for a runner, or held by one.",
        )

    async def measure(self) -> None:
        """Set the gauges: live runs by state, and overdue work by kind."""
        async with self._database.transaction(ALL_TENANTS) as connection:
            overdue = await work_queue.count_backlog(connection)
            live = await work_queue.count_live_runs(connection)
        for kind in work_queue.BACKLOG_KINDS:
            self._overdue.set(overdue.get(kind, 0), {"spawnmesh.session.cleanup.kind": kind.lower()})
        for state, count in live.items():
            self._runs.set(count, {"spawnmesh.session.run.state": state})
