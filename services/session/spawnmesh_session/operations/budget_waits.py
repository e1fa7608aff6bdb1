"""Runs that wait for a budget: from the refusal of a model call until the budget has room."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from spawnmesh_core.cancellation import run_all
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.store import enqueue

from spawnmesh_session.domain.budgets import first_reached, unraised
from spawnmesh_session.domain.runs import (
    HELD_RUN_STATES,
    INTERRUPTED,
    CallingRun,
    Run,
    RunState,
    lease_lost,
)
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.operations.parked_runs import queue_again, require_place
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.operations.session_event_jobs import publish_budget_reached
from spawnmesh_session.store import budgets, events, run_queue, runs, waiting_runs
from spawnmesh_session.store.rows import PendingRow
from spawnmesh_session.store.runs import LockedRun

_ROOM = "the budget has room"
_PAGE = 100
_CONCURRENT = 4  # Other work needs connections of the database too.
_DELETED = (Reason.RUN_LEASE_LOST, Reason.NOT_FOUND)
"""The reasons for which a run cannot be locked: it was deleted with its session."""


@dataclass(frozen=True, slots=True)
class BudgetWaits:
    """Lets runs wait for budgets, and queues them when all their budgets have room.

    A run that begins to wait locks its budgets. So it sees a change of the limits, or the change
    sees it.
    """

    database: Database
    terminator: RunTerminator

    async def wait(self, tenant_id: str, calling: CallingRun, usage: dict[str, Any] | None) -> Run:
        """Give the run up until its budgets have room, and return it.

        It is returned as it is if they have room, or if it is not held any more. It ends if it was
        interrupted, or if its budget lets no run wait. Raise RUN_LEASE_LOST for another epoch, and
        RUN_QUEUE_FULL if too many runs of the tenant wait.
        """
        async with self.database.pipelined(tenant_id) as connection:
            locked = await runs.lock_run_with_sessions(connection, tenant_id, calling.run_id)
            run = locked.run
            if run.epoch != calling.epoch:
                raise lease_lost(run, calling.epoch)
            if run.state not in HELD_RUN_STATES:
                return run
            if run.interrupt_time is not None:
                outcome = replace(INTERRUPTED, usage=usage)
                ended = await self.terminator.terminate(connection, tenant_id, locked, outcome)
            else:
                # The end of a run may lock a run of its parent, which is locked before budgets. So
                # the budgets are not locked for it.
                chain = locked.session.budget_session_ids
                reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain))
                if reached is None or reached.limits.wait:
                    return await self._park(connection, tenant_id, locked, usage)
                outcome = unraised(reached, run.session_id, usage)
                ended = await self.terminator.terminate(connection, tenant_id, locked, outcome)
        return await _ended(ended)

    async def _park(
        self,
        connection: Connection,
        tenant_id: str,
        locked: LockedRun,
        usage: dict[str, Any] | None,
    ) -> Run:
        """Let the locked and held run wait, and return it; as it is if its budgets have room."""
        run, session = locked.run, locked.session
        chain = session.budget_session_ids
        reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain, locks=True))
        if reached is None:
            return run
        await require_place(connection, tenant_id)
        now = await runs.read_time(connection)
        expire_time = now + reached.limits.wait
        parked = await waiting_runs.park_run_for_budget(
            connection, tenant_id, run, reached.session_id, now, expire_time, usage
        )
        await events.append_event(
            connection,
            tenant_id,
            run.session_id,
            EventKind.RUN,
            run_id=run.run_id,
            run_state=RunState.WAITING_BUDGET,
            detail=reached.describe_reached(run.session_id),
        )
        job = publish_budget_reached(session, run, reached, now, expire_time)
        await enqueue(connection, tenant_id, job)
        await run_queue.notify_runners_of_place(connection, tenant_id)
        return parked

    async def wake(self, tenant_id: str, budget_session_id: str) -> None:
        """Queue the runs that wait for the budget of the session if all their budgets have room."""
        after_id = ""
        while True:
            async with self.database.transaction(tenant_id) as connection:
                waiting = await waiting_runs.list_waiting_runs(
                    connection, tenant_id, budget_session_id, after_id=after_id, limit=_PAGE
                )
            places = asyncio.Semaphore(_CONCURRENT)
            await run_all(*(self._wake_run(tenant_id, run_id, places) for run_id in waiting))
            if len(waiting) < _PAGE:
                return
            after_id = waiting[-1]

    async def _wake_run(self, tenant_id: str, run_id: str, places: asyncio.Semaphore) -> None:
        try:
            async with places, self.database.pipelined(tenant_id) as connection:
                locked = await runs.lock_run_with_sessions(connection, tenant_id, run_id)
                if locked.run.state is RunState.WAITING_BUDGET:
                    await self._queue_or_wait(connection, tenant_id, locked)
        except MeshError as error:
            if not refused_with(error, *_DELETED):
                raise

    async def expire(self, connection: Connection, tenant_id: str, locked: LockedRun) -> bool:
        """End a locked run that has waited for long enough, unless its budgets have room by now.

        Return whether it ended.
        """
        chain = locked.session.budget_session_ids
        reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain))
        if reached is None:
            await queue_again(connection, tenant_id, locked.run, _ROOM)
            return False
        outcome = unraised(reached, locked.run.session_id)
        return await self.terminator.terminate(connection, tenant_id, locked, outcome) is not None

    async def _queue_or_wait(self, connection: Connection, tenant_id: str, locked: LockedRun) -> None:
        """Queue the locked run, or let it wait for the first of its budgets that has no room, for
        as long as that says.
        """
        run, chain = locked.run, locked.session.budget_session_ids
        reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain, locks=True))
        if reached is None:
            await queue_again(connection, tenant_id, run, _ROOM)
        else:
            expire_time = (run.wait_time or await runs.read_time(connection)) + reached.limits.wait
            await waiting_runs.wait_on(connection, tenant_id, run, reached.session_id, expire_time)
            if reached.session_id != run.budget_session_id:
                now = await runs.read_time(connection)
                job = publish_budget_reached(locked.session, run, reached, now, expire_time)
                await enqueue(connection, tenant_id, job)


async def _ended(ended: PendingRow[Run] | None) -> Run:
    run = await ended.fetch() if ended is not None else None
    if run is None:
        raise RuntimeError("a run that was locked and held was not ended")
    return run
