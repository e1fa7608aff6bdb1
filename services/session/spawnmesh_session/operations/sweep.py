"""What nobody is left to do: undoing spawns that were cut off, ending runs that no runner can finish, finishing deletions,
giving back jobs, letting time pass."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import structlog
from psycopg.rows import DictRow
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.errors import name_of
from spawnmesh_postgres.database import EVERY_TENANT, Database
from spawnmesh_runtime.acting import acting_for

from spawnmesh_session.domain import Ending, RunState, SessionState, SpawnFailure
from spawnmesh_session.operations.backlog import Backlog
from spawnmesh_session.operations.delete import Delete
from spawnmesh_session.operations.endings import Endings, lock_run
from spawnmesh_session.operations.retain import Retain
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.tenant_deletion import TenantDeletion
from spawnmesh_session.operations.undo import UNDO_RETRY, SpawnUndo
from spawnmesh_session.store import ended, runs, tenants

_TIMED_OUT = Ending(
    state=RunState.TIMED_OUT, error_reason="RUN_TIMEOUT", error_message="the run took longer than its run_timeout"
)
_LOST = Ending(
    state=RunState.FAILED, error_reason="ATTEMPTS_EXHAUSTED", error_message="every runner that held the run was lost"
)
_CUT_OFF = SpawnFailure.at("deadline", "the spawn was cut off and undone; spawn again with a new request_id")
_WORKER_SILENT = timedelta(seconds=60)  # Several of its heartbeats.
_AT_ONCE = 8  # A peer that is slow for one tenant must not hold up all others.
_ENDED_AT_ONCE = 4  # Whoever else needs the database has connections left.
_PAGE = runs.Page(limit=32, share=_AT_ONCE // 2)
_PAGE_OF_RUNS = runs.Page(limit=64, share=16)
_MOST_PAGES = 100  # Of one sweep, which says then how much it was; what is left has its turn in the next.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs in the worker; several may run at once."""

    database: Database
    endings: Endings
    undo: SpawnUndo
    delete: Delete
    retention: Retain
    deletion: TenantDeletion
    push: SettingsPush
    interval_seconds: float
    backlog: Backlog

    async def run_for_ever(self) -> None:
        """Sweeps at every interval: all kinds side by side, so that a peer that is away delays no run's end."""
        async with asyncio.TaskGroup() as sweeps:
            sweeps.create_task(self._repeat("ended_runs", self.end_lost_runs))
            sweeps.create_task(self._repeat("undone_spawns", self.undo_spawns))
            sweeps.create_task(self._repeat("deleted_sessions", self.finish_deletions))
            sweeps.create_task(self._repeat("retained_tenants", self.retain))
            sweeps.create_task(self._repeat("deleted_tenants", self.delete_tenants))
            sweeps.create_task(self._repeat("told_settings", self.tell_settings))
            sweeps.create_task(self._repeat("revived_jobs", self.revive_jobs))
            sweeps.create_task(self._repeat("measured", self.backlog.measure))

    async def _repeat(self, what: str, sweep: Callable[[], Awaitable[int | None]]) -> None:
        log = structlog.get_logger()
        while True:
            try:
                if count := await sweep():
                    log.info("swept", what=what, looked_at=count)
            except Exception as error:  # noqa: BLE001 - the next sweep goes on, whatever stopped this one.
                heed_cancellation()
                log.warning("sweep_failed", what=what, error=name_of(error))
            await asyncio.sleep(self.interval_seconds)

    async def end_lost_runs(self) -> int:
        """Ends runs whose time is over, and those whose lease ran out with no attempt left; returns how many."""
        ended = 0
        for _ in range(_MOST_PAGES):
            async with self.database.transaction(EVERY_TENANT) as connection:
                lost = await runs.take_lost(connection, _PAGE_OF_RUNS, UNDO_RETRY)
            if not lost:
                break
            ended += sum(await _side_by_side(_ENDED_AT_ONCE, self._end_if_possible, lost))
        return ended

    async def _end_if_possible(self, row: DictRow) -> bool:
        try:
            return await self._end(row)
        except Exception as error:  # noqa: BLE001 - one that cannot be ended stays for a later sweep, and keeps no other.
            heed_cancellation()
            log = structlog.get_logger().bind(tenant=row["tenant_id"], run=row["run_id"])
            log.warning("run_not_ended", error=name_of(error))
            return False

    async def _end(self, row: DictRow) -> bool:
        tenant_id, run_id = row["tenant_id"], row["run_id"]
        async with self.database.transaction(tenant_id) as connection:
            locked = await lock_run(connection, tenant_id, run_id)
            if not await runs.is_lost(connection, tenant_id, run_id, row["due_time"]):
                return False
            ending = _TIMED_OUT if row["timed_out"] else _LOST
            return await self.endings.end_run(connection, tenant_id, locked, ending) is not None

    async def undo_spawns(self) -> int:
        """Undoes spawns past their deadline, and repeats what could not be undone at once; returns how many were looked at."""
        return await self._take_all(runs.SPAWN, self._undo)

    async def finish_deletions(self) -> int:
        """Removes what peers keep of deleted sessions still; returns how many were looked at."""
        return await self._take_all(runs.DELETE, self.delete.finish)

    async def retain(self) -> int:
        """Applies the retention of tenants whose time has come; returns how many were looked at."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            due = await tenants.list_to_retain(connection)
        return await self._each("RETAIN", due, lambda tenant_id, _: self.retention.run(tenant_id))

    async def delete_tenants(self) -> int:
        """Goes on with deletions of tenants; returns how many were looked at."""
        return await self._take(runs.PURGE, lambda tenant_id, _: self.deletion.run(tenant_id))

    async def tell_settings(self) -> int:
        """Tells peers of settings that they were not told, or did not take; returns how many pushes were looked at."""
        return await self._take(runs.SETTINGS, self.push.repeat)

    async def revive_jobs(self) -> int:
        """Has jobs worked on again whose worker was killed or lost its database; returns how many."""
        async with self.database.transaction(EVERY_TENANT) as connection:
            return await runs.revive_jobs(connection, _WORKER_SILENT)

    async def _take_all(self, kind: str, work: Callable[[str, str], Awaitable[object]]) -> int:
        """Page by page until nothing is due, or others should have their turn; returns how many were looked at."""
        count = 0
        for _ in range(_MOST_PAGES):
            if not (taken := await self._take(kind, work)):
                break
            count += taken
        return count

    async def _take(self, kind: str, work: Callable[[str, str], Awaitable[object]]) -> int:
        async with self.database.transaction(EVERY_TENANT) as connection:
            due = await runs.take_overdue(connection, kind, _PAGE, UNDO_RETRY)
        return await self._each(kind, due, work)

    async def _each(self, kind: str, due: list[DictRow], work: Callable[[str, str], Awaitable[object]]) -> int:
        """Works on what is due, several at once, in the name of its tenant: `work` is given the tenant and the subject."""

        async def one(row: DictRow) -> None:
            try:
                with acting_for(row["tenant_id"]):
                    await work(row["tenant_id"], row["subject_id"])
            except Exception as error:  # noqa: BLE001 - it comes again, and keeps no other.
                heed_cancellation()
                log = structlog.get_logger().bind(kind=kind, tenant=row["tenant_id"], subject=row["subject_id"])
                log.warning("swept_in_vain", error=name_of(error))

        await _side_by_side(_AT_ONCE, one, due)
        return len(due)

    async def _undo(self, tenant_id: str, session_id: str) -> None:
        async with self.database.transaction(tenant_id) as connection:
            session = await ended.lock_even_deleted(connection, tenant_id, session_id)
            if session is None or session["delete_time"] is not None:
                await runs.delete_dispatch(connection, tenant_id, runs.SPAWN, session_id)
                return
        if session["state"] == SessionState.PROVISIONING:
            await self.undo.run(tenant_id, session_id, _CUT_OFF, settled=True)
        elif session["state"] == SessionState.SPAWN_FAILED:
            await self.undo.clear(tenant_id, session_id, forget=True)


async def _side_by_side(at_once: int, work: Callable[[DictRow], Awaitable[T]], rows: Sequence[DictRow]) -> list[T]:
    """Works on the rows, so many at once, and begins them in their order; gives what each came to."""
    places = asyncio.Semaphore(at_once)

    async def one(row: DictRow) -> T:
        async with places:
            return await work(row)

    async with asyncio.TaskGroup() as working:
        tasks = [working.create_task(one(row)) for row in rows]
    return [task.result() for task in tasks]
