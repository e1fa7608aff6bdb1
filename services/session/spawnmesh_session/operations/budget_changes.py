"""Changes of the limits of a budget."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import NewJob
from spawnmesh_postgres.jobs.store import enqueue, reschedule

from spawnmesh_session.domain.budgets import (
    FamilyBudget,
    FamilyLimits,
    budget_missing,
)
from spawnmesh_session.domain.etags import etag_differs
from spawnmesh_session.domain.job_kinds import WAKE_BUDGET
from spawnmesh_session.domain.sessions import EventKind
from spawnmesh_session.operations.session_event_jobs import publish_budget_changed
from spawnmesh_session.store import budgets, events, runs, sessions

LimitsChange = Callable[[FamilyLimits], FamilyLimits]
"""Returns the new limits for the present ones."""


@dataclass(frozen=True, slots=True)
class BudgetChanger:
    """Changes limits. The runs that wait for them are queued by a job of the same transaction."""

    database: Database

    async def change(
        self, tenant_id: str, session_id: str, change: LimitsChange, *, etag: str, updated_by: str
    ) -> FamilyBudget:
        """Change the limits of the budget of the session, and return it. Limits that are the same
        change nothing.

        Raise NOT_FOUND, BUDGET_MISSING, ETAG_DIFFERS, BUDGET_BELOW_USAGE, and what `change` raises.
        """
        async with self.database.pipelined(tenant_id) as connection:
            session = await sessions.lock_session(connection, tenant_id, session_id)
            found = await budgets.list_budgets(connection, tenant_id, [session_id], locks=True)
            if not found:
                raise budget_missing(session_id)
            [budget] = found
            if etag and etag != budget.etag:
                raise etag_differs("etag", "budget", session_id, etag=budget.etag, version=budget.version)
            wanted = replace(budget, limits=change(budget.limits))
            what = budget.describe_change(wanted.limits)
            if not what:
                return budget
            budget.require_above_use(wanted.limits)
            now = await runs.read_time(connection)
            changed = await budgets.change_limits(
                connection, tenant_id, wanted, updated_by=updated_by, now=now
            )
            await events.append_event(
                connection,
                tenant_id,
                session_id,
                EventKind.BUDGET_CHANGED,
                detail=f"{what} by {updated_by}",
            )
            await enqueue(connection, tenant_id, publish_budget_changed(session, changed, now))
            await reschedule(connection, tenant_id, NewJob(WAKE_BUDGET, session_id))
        return changed
