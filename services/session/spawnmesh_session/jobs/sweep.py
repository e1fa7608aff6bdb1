"""The sweep: it ends runs that no runner can finish, decides on approvals and waits whose time is
over, and applies the retention.

What a request has begun and does not finish is left to the jobs of `jobs.clean_ups`. Revocations of
tokens that have expired are forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_runtime.impersonation import impersonate

from spawnmesh_session.domain.runs import RunState, outcome_of_lost
from spawnmesh_session.gauges import Gauges
from spawnmesh_session.jobs.retention import RetentionJob
from spawnmesh_session.operations.approval_decisions import ApprovalDecider
from spawnmesh_session.operations.budget_waits import BudgetWaits
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.store import revoked_tokens, run_queue, runs, tenants
from spawnmesh_session.store.run_queue import LostRun

_CONCURRENT_PASSES = 8  # A service that is slow for one tenant must not delay all others.
_CONCURRENT_ENDS = 4  # Other work needs connections of the database too.
_QUOTA = run_queue.TakeQuota(limit=64, share=16)
_REVOCATION_PAGE = 1000  # More than the runs that can end within an interval.
_MAX_PAGES = 100  # Pages of one sweep; the next sweep takes the rest.

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Sweeps in the worker; several workers may sweep at once."""

    database: Database
    terminator: RunTerminator
    decider: ApprovalDecider
    waits: BudgetWaits
    retention: RetentionJob
    lease_ttl: timedelta
    interval_seconds: float
    gauges: Gauges

    async def sweep_forever(self) -> None:
        """Sweep at every interval, each kind in a task of its own."""
        async with asyncio.TaskGroup() as sweeps:
            for kind, sweep in (
                ("lost_runs", self.end_lost_runs),
                ("retention", self.retain),
                ("revocations", self.forget_revocations),
                ("gauges", self.gauges.measure),
            ):
                sweeps.create_task(self._repeat(kind, sweep))

    async def _repeat(self, kind: str, sweep: Callable[[], Awaitable[int | None]]) -> None:
        log = structlog.get_logger()
        while True:
            try:
                if count := await sweep():
                    log.info("swept", kind=kind, count=count)
            except Exception as error:  # noqa: BLE001
                # The next sweep tries again, whatever the error.
                raise_if_cancelled()
                log.warning("sweep_failed", kind=kind, error=error_label(error))
            await asyncio.sleep(self.interval_seconds)

    async def end_lost_runs(self) -> int:
        """End runs past their deadline or without attempts, and let waits expire.

        Return the number of the ended runs.
        """
        ended = 0
        for _ in range(_MAX_PAGES):
            async with self.database.transaction(ALL_TENANTS) as connection:
                lost = await run_queue.take_lost_runs(connection, _QUOTA, run_queue.RETRY_IN, self.lease_ttl)
            if not lost:
                break
            ended += sum(await _map_concurrently(_CONCURRENT_ENDS, self._try_to_end, lost))
        return ended

    async def forget_revocations(self) -> int:
        """Delete revocations of tokens that have expired; return their number."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            return await revoked_tokens.prune_revoked_tokens(connection, _REVOCATION_PAGE)

    async def _try_to_end(self, lost: LostRun) -> bool:
        try:
            return await self._end(lost)
        except Exception as error:  # noqa: BLE001
            # A later sweep tries again; the other runs go on.
            raise_if_cancelled()
            log = structlog.get_logger().bind(tenant=lost.tenant_id, run=lost.run_id)
            log.warning("run_not_ended", error=error_label(error))
            return False

    async def _end(self, lost: LostRun) -> bool:
        tenant_id, run_id = lost.tenant_id, lost.run_id
        async with self.database.pipelined(tenant_id) as connection:
            locked = await runs.lock_run_with_sessions(connection, tenant_id, run_id)
            entry = await run_queue.lock_lost_entry(connection, lost)
            if locked.run.state in (RunState.WAITING_APPROVAL, RunState.WAITING_BUDGET):
                if entry is None or not entry.is_past_deadline:
                    return False
                if locked.run.state is RunState.WAITING_BUDGET:
                    return await self.waits.expire(connection, tenant_id, locked)
                return await self.decider.expire(connection, tenant_id, locked, self.terminator)
            outcome = outcome_of_lost(locked.run, entry)
            if outcome is None:
                return False
            return await self.terminator.terminate(connection, tenant_id, locked, outcome) is not None

    async def retain(self) -> int:
        """Apply the retention of tenants whose pass is due; return the number of passes."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            due = await tenants.list_tenants_to_retain(connection)
        await _map_concurrently(_CONCURRENT_PASSES, self._retain, due)
        return len(due)

    async def _retain(self, tenant_id: str) -> None:
        try:
            with impersonate(tenant_id):
                await self.retention.retain(tenant_id)
        except Exception as error:  # noqa: BLE001
            # Its pass is due again later; the other tenants go on.
            raise_if_cancelled()
            log = structlog.get_logger().bind(tenant=tenant_id)
            log.warning("retention_failed", error=error_label(error))


async def _map_concurrently(limit: int, work: Callable[[R], Awaitable[T]], items: Sequence[R]) -> list[T]:
    """Call `work` with each item, `limit` at a time, begun in their order; return the results."""
    semaphore = asyncio.Semaphore(limit)

    async def work_on(item: R) -> T:
        async with semaphore:
            return await work(item)

    async with asyncio.TaskGroup() as working:
        tasks = [working.create_task(work_on(item)) for item in items]
    return [task.result() for task in tasks]
