"""The sweep: it finishes what no request finishes any more.

It undoes spawns that were interrupted, ends runs that no runner can finish, finishes deletions,
pushes settings again, revives jobs of dead workers, applies the retention, and forgets expired
revocations.
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

from spawnmesh_session.domain.runs import Run, RunOutcome, RunReason, RunState, describe_timeout
from spawnmesh_session.domain.sessions import SessionState
from spawnmesh_session.domain.spawns import SpawnFailure
from spawnmesh_session.gauges import Gauges
from spawnmesh_session.jobs.retention import RetentionJob
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.operations.tenant_purge import TenantPurge
from spawnmesh_session.store import job_queue, revoked_tokens, runs, sessions, tenants, work_queue
from spawnmesh_session.store.work_queue import LostRun

_LOST = RunOutcome(
    state=RunState.FAILED,
    error_reason=RunReason.ATTEMPTS_EXHAUSTED.value,
    error_message="every runner that held the run was lost",
)
_CUT_OFF = SpawnFailure.cut_off("deadline")
_WORKER_SILENT = timedelta(seconds=60)  # Several heartbeats of a job worker.
_CONCURRENT_ITEMS = 8  # A service that is slow for one tenant must not delay all others.
_CONCURRENT_ENDS = 4  # Other work needs connections of the database too.
_QUOTA = work_queue.TakeQuota(limit=32, share=_CONCURRENT_ITEMS // 2)
_RUN_QUOTA = work_queue.TakeQuota(limit=64, share=16)
_REVOCATION_PAGE = 1000  # More than the runs that can end within an interval.
_MAX_PAGES = 100  # Pages of one sweep; the next sweep takes the rest.

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Sweeps in the worker; several workers may sweep at once."""

    database: Database
    terminator: RunTerminator
    undo: SpawnUndo
    deleter: SessionDeleter
    retention: RetentionJob
    purge: TenantPurge
    settings_push: SettingsPush
    interval_seconds: float
    gauges: Gauges

    async def sweep_forever(self) -> None:
        """Sweep at every interval, each kind in a task of its own."""
        async with asyncio.TaskGroup() as sweeps:
            for kind, sweep in (
                ("lost_runs", self.end_lost_runs),
                ("spawns", self.undo_spawns),
                ("session_deletions", self.finish_deletions),
                ("retention", self.retain),
                ("tenant_purges", self.purge_tenants),
                ("settings", self.push_settings),
                ("jobs", self.revive_jobs),
                ("revocations", self.forget_revocations),
                ("backlog", self.gauges.measure),
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
        """End runs past their deadline or without attempts; return their number."""
        ended = 0
        for _ in range(_MAX_PAGES):
            async with self.database.transaction(ALL_TENANTS) as connection:
                lost = await work_queue.take_lost_runs(connection, _RUN_QUOTA, work_queue.RETRY_IN)
            if not lost:
                break
            ended += sum(await _map_concurrently(_CONCURRENT_ENDS, self._try_to_end, lost))
        return ended

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
            if not await work_queue.is_lost_run(connection, tenant_id, run_id, lost.due_time):
                return False
            outcome = _timed_out(locked.run) if lost.timed_out else _LOST
            return await self.terminator.terminate(connection, tenant_id, locked, outcome) is not None

    async def undo_spawns(self) -> int:
        """Undo spawns past their deadline, and retry failed undos; return the number."""
        return await self._take_all(work_queue.SPAWN, self._undo_spawn)

    async def finish_deletions(self) -> int:
        """Remove what other services store for deleted sessions; return the number of tries."""
        return await self._take_all(work_queue.DELETE, self.deleter.finish)

    async def retain(self) -> int:
        """Apply the retention of tenants whose pass is due; return the number of passes."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            due = await tenants.list_tenants_to_retain(connection)

        async def retain(tenant_id: str, _: str) -> object:
            return await self.retention.retain(tenant_id)

        return await self._work_on("RETAIN", [(tenant_id, tenant_id) for tenant_id in due], retain)

    async def purge_tenants(self) -> int:
        """Continue deletions of tenants; return the number of passes."""

        async def purge(tenant_id: str, _: str) -> object:
            return await self.purge.purge(tenant_id)

        return await self._take(work_queue.PURGE, purge)

    async def push_settings(self) -> int:
        """Repeat pushes of settings that failed or were interrupted; return the number of tries."""
        return await self._take(work_queue.SETTINGS, self.settings_push.push_again)

    async def revive_jobs(self) -> int:
        """Requeue jobs whose worker was killed or lost its database; return their number."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            return await job_queue.revive_jobs(connection, _WORKER_SILENT)

    async def forget_revocations(self) -> int:
        """Delete revocations of tokens that have expired; return their number."""
        async with self.database.transaction(ALL_TENANTS) as connection:
            return await revoked_tokens.prune_revoked_tokens(connection, _REVOCATION_PAGE)

    async def _take_all(self, kind: str, work: Callable[[str, str], Awaitable[object]]) -> int:
        """Take pages until nothing is due, or up to the maximum; return the number of tries."""
        count = 0
        for _ in range(_MAX_PAGES):
            if not (taken := await self._take(kind, work)):
                break
            count += taken
        return count

    async def _take(self, kind: str, work: Callable[[str, str], Awaitable[object]]) -> int:
        async with self.database.transaction(ALL_TENANTS) as connection:
            due = await work_queue.take_overdue(connection, kind, _QUOTA, work_queue.RETRY_IN)
        return await self._work_on(kind, [(entry.tenant_id, entry.subject_id) for entry in due], work)

    async def _work_on(
        self, kind: str, due: list[tuple[str, str]], work: Callable[[str, str], Awaitable[object]]
    ) -> int:
        """Call `work` with each tenant and subject, several at once, in the name of the tenant."""

        async def work_on_one(entry: tuple[str, str]) -> None:
            tenant_id, subject_id = entry
            try:
                with impersonate(tenant_id):
                    await work(tenant_id, subject_id)
            except Exception as error:  # noqa: BLE001
                # It is due again later; the other entries go on.
                raise_if_cancelled()
                log = structlog.get_logger().bind(kind=kind, tenant=tenant_id, subject=subject_id)
                log.warning("sweep_item_failed", error=error_label(error))

        await _map_concurrently(_CONCURRENT_ITEMS, work_on_one, due)
        return len(due)

    async def _undo_spawn(self, tenant_id: str, session_id: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            session = await sessions.lock_session_or_deleted(connection, tenant_id, session_id)
            if session is None or session.delete_time is not None:
                await work_queue.delete_entry(connection, tenant_id, work_queue.SPAWN, session_id)
                return
        if session.state == SessionState.PROVISIONING:
            await self.undo.undo(tenant_id, session_id, _CUT_OFF, settled=True)
        elif session.state == SessionState.SPAWN_FAILED:
            await self.undo.clear(tenant_id, session_id, forget=True)


def _timed_out(run: Run) -> RunOutcome:
    return RunOutcome(
        state=RunState.TIMED_OUT,
        error_reason=RunReason.RUN_TIMEOUT.value,
        error_message=describe_timeout(run),
    )


async def _map_concurrently(limit: int, work: Callable[[R], Awaitable[T]], items: Sequence[R]) -> list[T]:
    """Call `work` with each item, `limit` at a time, begun in their order; return the results."""
    semaphore = asyncio.Semaphore(limit)

    async def work_on(item: R) -> T:
        async with semaphore:
            return await work(item)

    async with asyncio.TaskGroup() as working:
        tasks = [working.create_task(work_on(item)) for item in items]
    return [task.result() for task in tasks]
