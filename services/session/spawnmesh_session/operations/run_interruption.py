"""The interrupt of a run: it ends at its next safe point, and its session stays open."""

from dataclasses import dataclass, replace
from typing import Any

from spawnmesh_postgres.database import Database

from spawnmesh_session.domain.runs import (
    INTERRUPTED,
    TERMINAL_RUN_STATES,
    CallingRun,
    Run,
    RunState,
    require_interrupted,
    require_lease,
    require_same_end,
    require_undecided,
)
from spawnmesh_session.operations.caller_lease import require_lease_of
from spawnmesh_session.operations.conflict_retry import retry_while_conflict
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.store import run_queue, runs, sessions
from spawnmesh_session.store.rows import PendingRow


@dataclass(frozen=True, slots=True)
class RunInterrupter:
    """Interrupts runs.

    The lock on the run decides a race with its answer: a run is interrupted before its draft is
    decided, or not at all.
    """

    database: Database
    terminator: RunTerminator

    async def interrupt(
        self, tenant_id: str, session_id: str, run_id: str, calling_run: CallingRun | None
    ) -> Run | None:
        """Ask the live run to end, and return it; one without a runner, or with a lease that has
        expired, ends here.

        Without a live run, or if `run_id` names another one, change nothing and return that run or
        the newest one, if there is any. Wait up to 2 s while the run is being ended with its
        answer; then raise CONFLICT.
        """
        run: Run | None = await retry_while_conflict()(
            self._interrupt, tenant_id, session_id, run_id, calling_run
        )
        return run

    async def _interrupt(
        self, tenant_id: str, session_id: str, run_id: str, calling_run: CallingRun | None
    ) -> Run | None:
        family_root = calling_run.session_id if calling_run else ""
        async with self.database.pipelined(tenant_id) as connection:
            session = await sessions.read_session(connection, tenant_id, session_id, family_root=family_root)
            await require_lease_of(connection, tenant_id, calling_run)
            # The parent is notified, and parents are locked before children.
            if session.parent_session_id:
                await sessions.lock_session(connection, tenant_id, session.parent_session_id)
            await sessions.lock_session(connection, tenant_id, session_id)
            live = await runs.lock_live_run(connection, tenant_id, session_id)
            if run_id and (live is None or live.run_id != run_id):
                return await runs.find_run(connection, tenant_id, session_id, run_id)
            if live is None:
                return (await sessions.read_session(connection, tenant_id, session_id)).latest_run
            require_undecided(live)
            run = await runs.interrupt_run(connection, tenant_id, live.run_id)
            if await run_queue.lock_if_held(connection, tenant_id, run.run_id):
                if live.interrupt_time is None:
                    await runs.notify_runner(connection, tenant_id, run)
                return run
            locked = await runs.lock_run_with_sessions(connection, tenant_id, run.run_id)
            ended = await self.terminator.terminate(connection, tenant_id, locked, INTERRUPTED)
        return await _fetch(ended)

    async def end(self, tenant_id: str, run_id: str, epoch: int, usage: dict[str, Any] | None) -> Run:
        """End an interrupted run for the runner that holds it; a repeat at this epoch returns it.

        Raise RUN_LEASE_LOST for a runner that does not hold it, and RUN_STATE for a run that
        was not interrupted or has ended otherwise.
        """
        async with self.database.pipelined(tenant_id) as connection:
            locked = await runs.lock_run_with_sessions(connection, tenant_id, run_id)
            run = locked.run
            if run.state in TERMINAL_RUN_STATES:
                return require_same_end(run, epoch, RunState.INTERRUPTED)
            require_lease(run, epoch)
            require_interrupted(run)
            outcome = replace(INTERRUPTED, usage=usage)
            ended = await self.terminator.terminate(connection, tenant_id, locked, outcome, epoch=epoch)
        return await _fetch(ended)

    async def end_released(self, tenant_id: str, run: Run, epoch: int) -> Run:
        """End an interrupted run, whose runner releases it, and return it; another one as it is."""
        if run.interrupt_time is None:
            return run
        if run.state is RunState.QUEUED:
            return await self.interrupt(tenant_id, run.session_id, run.run_id, None) or run
        return await self.end(tenant_id, run.run_id, epoch, None)


async def _fetch(ended: PendingRow[Run] | None) -> Run:
    run = await ended.fetch() if ended is not None else None
    if run is None:
        raise RuntimeError("a run that was locked and open was not ended")
    return run
