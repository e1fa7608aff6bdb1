"""New runs and their way into the queue."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_postgres.database import Connection

from spawnmesh_session.domain.runs import QueuedRun, Run
from spawnmesh_session.store import runs
from spawnmesh_session.store.rows import PendingRow


@dataclass(frozen=True, slots=True)
class RunQueuer:
    """Creates runs that can be claimed `max_run_attempts` times."""

    max_run_attempts: int

    def new_run(self, run_timeout: timedelta) -> QueuedRun:
        """Return a run with a new id and the maximum number of attempts."""
        return QueuedRun(new_id(IdKind.RUN), run_timeout, self.max_run_attempts)

    async def queue_run(
        self, connection: Connection, tenant_id: str, session_id: str, run_timeout: timedelta
    ) -> PendingRow[Run]:
        """Queue a new run of an active session without a live run.

        The caller's transaction holds the session's lock. The pending row is the run.
        """
        return await runs.queue_run(connection, tenant_id, session_id, self.new_run(run_timeout))
