"""How many runs there are, and how far the cleaning up is behind."""

from opentelemetry.metrics import Meter
from spawnmesh_postgres.database import EVERY_TENANT, Database

from spawnmesh_session.store import runs

_KINDS = (runs.SPAWN, runs.DELETE, runs.PURGE, runs.SETTINGS, runs.END, "RETAIN", "JOB")


class Backlog:
    """Measures for all tenants; every worker measures the same."""

    def __init__(self, database: Database, meter: Meter) -> None:
        self._database = database
        self._gauge = meter.create_gauge(
            "spawnmesh.session.cleanup.backlog",
            unit="{item}",
            description="Spawns to undo, deletions to finish, settings and ends to tell, tenants to look at and jobs, whose time has come.",
        )

        self._runs = meter.create_gauge(
            "spawnmesh.session.runs",
            unit="{run}",
            description="Runs that have not ended: waiting for a runner, or held by one.",
        )

    async def measure(self) -> None:
        """Sets the gauges: runs by state, and for each kind what should have been seen to by now and is not."""
        async with self._database.transaction(EVERY_TENANT) as connection:
            waiting = await runs.count_backlog(connection)
            live = await runs.count_live(connection)
        for kind in _KINDS:
            self._gauge.set(waiting.get(kind, 0), {"spawnmesh.session.cleanup.kind": kind.lower()})
        for state, count in live.items():
            self._runs.set(count, {"spawnmesh.session.run.state": state})
