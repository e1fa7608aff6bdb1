"""The model calls of runs with budgets: their admission, and the count of what they used."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import delete, enqueue, reschedule

from spawnmesh_session.domain.budgets import (
    FamilyUse,
    OpenModelCall,
    budget_exceeded,
    first_reached,
    settled,
    unreported,
)
from spawnmesh_session.domain.job_kinds import EXPIRE_MODEL_CALL, WAKE_BUDGET
from spawnmesh_session.domain.runs import HELD_RUN_STATES, Run, lease_lost
from spawnmesh_session.store import budgets, runs, sessions


@dataclass(frozen=True, slots=True)
class ModelCallCounter:
    """Counts model calls in the budgets of their run: as calls when they begin, by what they used
    when they end.

    The run is locked before its calls, and these before the budgets, so that calls of a family are
    counted one after the other.
    """

    database: Database

    async def admit(self, tenant_id: str, call: OpenModelCall, expires_in: timedelta) -> None:
        """Count the call and admit it. A repeat for an open call does nothing.

        Raise NOT_FOUND for a run of another session, RUN_LEASE_LOST for a run that no runner holds,
        and SESSION_BUDGET_EXCEEDED.
        """
        refusal = await self._admit(tenant_id, call, expires_in)
        if refusal is not None:  # The time up to here is counted all the same.
            raise refusal

    async def _admit(self, tenant_id: str, call: OpenModelCall, expires_in: timedelta) -> MeshError | None:
        async with self.database.pipelined(tenant_id) as connection:
            run = await runs.lock_run(connection, tenant_id, call.run_id)
            if run.session_id != call.session_id:
                raise not_found("run", call.run_id)
            session = await sessions.read_session(connection, tenant_id, run.session_id)
            chain = session.budget_session_ids
            if run.state not in HELD_RUN_STATES:
                raise lease_lost(run, run.epoch)
            if not chain or await budgets.find_model_call(connection, tenant_id, call.call_id):
                return None
            earlier = await budgets.count_earlier_calls(connection, tenant_id, run.run_id)
            await budgets.list_budgets(connection, tenant_id, chain, locks=True)
            now = await runs.read_time(connection)
            worked = await _count_time(connection, tenant_id, run, now)
            most = unreported(earlier)
            use = FamilyUse(most.token_count, most.cost_micros, 0, worked)
            await budgets.add_use(connection, tenant_id, chain, use)
            reached = first_reached(await budgets.list_budgets(connection, tenant_id, chain))
            if reached is not None:
                return budget_exceeded(reached, run.run_id)
            await budgets.add_use(connection, tenant_id, chain, FamilyUse(model_call_count=1))
            await budgets.insert_model_call(connection, tenant_id, call, now)
            expiry = NewJob(EXPIRE_MODEL_CALL, call.call_id, due_in=expires_in)
            await enqueue(connection, tenant_id, expiry)
            return None

    async def record(self, tenant_id: str, call_id: str, token_count: int, cost_micros: int) -> None:
        """Count what the call used, once. Do nothing for a call that is not open."""
        async with self.database.pipelined(tenant_id) as connection:
            call, run = await _take(connection, tenant_id, call_id)
            if call is not None:
                await _count(connection, tenant_id, call, run, settled(call, token_count, cost_micros))
                await delete(connection, tenant_id, EXPIRE_MODEL_CALL, call_id)

    async def expire(self, tenant_id: str, call_id: str) -> None:
        """Count the most that the call may have used, unless it was reported or counted."""
        async with self.database.pipelined(tenant_id) as connection:
            call, _ = await _take(connection, tenant_id, call_id)
            if call is not None and not call.is_counted:
                await _count(connection, tenant_id, call, None, call.largest)


async def _take(
    connection: Connection, tenant_id: str, call_id: str
) -> tuple[OpenModelCall | None, Run | None]:
    """Delete an open call, and return it with its locked run; None if it is not open."""
    call = await budgets.find_model_call(connection, tenant_id, call_id)
    if call is None:
        return None, None
    run = await (await runs.send_lock(connection, tenant_id, call.run_id)).fetch()
    return await budgets.take_model_call(connection, tenant_id, call_id), run


async def _count(
    connection: Connection, tenant_id: str, call: OpenModelCall, run: Run | None, use: FamilyUse
) -> None:
    """Add the use of a call to its budgets, and the time of its run if that is still held.

    Runs may wait for what a call was expected to use and did not: their budgets are looked at.
    """
    session = await sessions.read_session(connection, tenant_id, call.session_id)
    chain = session.budget_session_ids
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
    """Return the time for which the locked run has worked since it was counted, which is now."""
    await runs.set_counted_time(connection, tenant_id, run.run_id, now)
    return max(now - run.counted_time, timedelta()) if run.counted_time else timedelta()
