"""The handlers of jobs about budgets."""

from dataclasses import dataclass

from spawnmesh_postgres.jobs.job import ClaimedJob

from spawnmesh_session.operations.budget_waits import BudgetWaits
from spawnmesh_session.operations.model_call_counting import ModelCallCounter


@dataclass(frozen=True, slots=True)
class BudgetJobs:
    """Counts model calls that nothing reported, and queues runs whose budgets have room."""

    calls: ModelCallCounter
    waits: BudgetWaits

    async def expire_model_call(self, job: ClaimedJob) -> None:
        """Count a call whose time is over."""
        await self.calls.expire(job.tenant_id, job.key)

    async def wake_budget(self, job: ClaimedJob) -> None:
        """Queue the runs that wait for the budget of the session and need not any longer."""
        await self.waits.wake(job.tenant_id, job.key)
