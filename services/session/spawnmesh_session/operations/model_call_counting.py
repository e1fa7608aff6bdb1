"""The model calls of runs with budgets: their admission, and the count of what they used."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import enqueue, reschedule

from spawnmesh_session.domain.budgets import (
    FamilyUse,
    OpenModelCall,
    budget_exceeded,
    first_reached,
    settled,
)
from spawnmesh_session.domain.job_kinds import EXPIRE_MODEL_CALL, WAKE_BUDGET
from spawnmesh_session.domain.runs import HELD_RUN_STATES, Run, lease_lost
from spawnmesh_session.store import budgets, run_queue, runs, sessions

_LATE = timedelta(minutes=1)
"""Longer than an admission that its caller has given up can be on its way."""


@dataclass(frozen=True, slots=True)
class ModelCallCounter:
    """Counts model calls in the budgets of their run: as calls when they begin, by what they used
    when they end.

    The run is locked before calls, and these before budgets, so that the calls of a family are
    counted one after the other. A call that is not reported counts with the most that it may use
    when its run calls again, when its run is not held any more and any run of the family calls, and
    when its time is over.
    """

    database: Database

    async def admit(
        self, tenant_id: str, call: OpenModelCall, expires_in: timedelta, *, epoch: int = 0
    ) -> None:
        """Count the call and admit it. A repeat for a call that is known does nothing.

        Raise NOT_FOUND for a run of another session, RUN_LEASE_LOST for a run that no runner holds,
        or that is held at another epoch, if one is given, INVALID_REQUEST for the id of a call of
        another run, and SESSION_BUDGET_EXCEEDED.
        """
        refusal = await self._admit(tenant_id, call, expires_in, epoch)
        if refusal is not None:  # The time up to here is counted all the same.
            raise refusal

    async def _admit(
        self, tenant_id: str, call: OpenModelCall, expires_in: timedelta, epoch: int
    ) -> MeshError | None:
        async with self.database.pipelined(tenant_id) as connection:
            run = await runs.lock_run(connection, tenant_id, call.run_id)
            if run.session_id != call.session_id:
                raise not_found("run", call.run_id)
            if run.state not in HELD_RUN_STATES or epoch not in (0, run.epoch):
                raise lease_lost(run, epoch or run.epoch)
            session = await sessions.read_session(connection, tenant_id, run.session_id)
            chain = session.budget_session_ids
            if not chain:
                return None
            known = await budgets.find_model_call(connection, tenant_id, call.call_id)
            if known is not None:
                return None if known.run_id == run.run_id else invalid("call_id", "is that of another run")
            unreported = await budgets.lock_family_calls(connection, tenant_id, chain[0], run.run_id)
            await budgets.set_counted(connection, tenant_id, unreported)
            shared = sorted({*chain, *(one for other in unreported for one in other.budget_session_ids)})
            await budgets.list_budgets(connection, tenant_id, shared, locks=True)
            for other in unreported:
                await budgets.add_use(connection, tenant_id, other.budget_session_ids, other.largest)
            now = await runs.read_time(connection)
            worked = FamilyUse(run_time=await _count_time(connection, tenant_id, run, now))
            await budgets.add_use(connection, tenant_id, chain, worked)
            reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain))
            if reached is not None:
                return budget_exceeded(reached, run)
            await budgets.add_use(connection, tenant_id, chain, FamilyUse(model_call_count=1))
            counted = replace(call, budget_session_ids=chain)
            await budgets.insert_model_call(connection, tenant_id, counted, now)
            expiry = NewJob(EXPIRE_MODEL_CALL, call.call_id, due_in=expires_in)
            await enqueue(connection, tenant_id, expiry)
            return None

    async def record(self, tenant_id: str, call_id: str, token_count: int, cost_micros: int) -> None:
        """Count what the call used, once. Do nothing for a call that is not open."""
        async with self.database.pipelined(tenant_id) as connection:
            known = await budgets.find_model_call(connection, tenant_id, call_id)
            if known is None or known.is_reported:
                return
            run = await (await runs.send_lock(connection, tenant_id, known.run_id)).fetch()
            call = await budgets.report_model_call(connection, tenant_id, call_id)
            if call is None:
                return
            await _count(connection, tenant_id, call, run, settled(call, token_count, cost_micros))
            # The row stays for a while: an admission that was late would count the call again.
            await reschedule(connection, tenant_id, NewJob(EXPIRE_MODEL_CALL, call_id, due_in=_LATE))

    async def expire(self, tenant_id: str, call_id: str) -> None:
        """Forget a call whose time is over. Count the most that it may have used, unless it was
        reported or counted.
        """
        async with self.database.pipelined(tenant_id) as connection:
            call = await budgets.delete_model_call(connection, tenant_id, call_id)
            if call is not None and not (call.is_counted or call.is_reported):
                await _count(connection, tenant_id, call, None, call.largest)


async def _count(
    connection: Connection, tenant_id: str, call: OpenModelCall, run: Run | None, use: FamilyUse
) -> None:
    """Add the use of a call to its budgets, and the time of its run if that is still held.

    Runs may wait for what a call was expected to use and did not: their budgets are looked at.
    """
    chain = call.budget_session_ids
    await budgets.list_budgets(connection, tenant_id, chain, locks=True)
    worked = timedelta()
    if run is not None and run.state in HELD_RUN_STATES:
        worked = await _count_time(connection, tenant_id, run, await runs.read_time(connection))
    added = FamilyUse(use.token_count, use.cost_micros, 0, worked)
    await budgets.add_use(connection, tenant_id, chain, added)
    if min(use.token_count, use.cost_micros) < 0:
        for session_id in chain:
            await reschedule(connection, tenant_id, NewJob(WAKE_BUDGET, session_id))


async def _count_time(connection: Connection, tenant_id: str, run: Run, now: datetime) -> timedelta:
    """Return the time for which the locked run has worked since it was counted, which is now.

    Nothing works on a run behind the end of its lease.
    """
    lease_end = await run_queue.get_lease_end(connection, tenant_id, run.run_id) or now
    await runs.set_counted_time(connection, tenant_id, run.run_id, now)
    held = min(now, lease_end) - (run.counted_time or now)
    return run.uncounted_time + max(held, timedelta())
