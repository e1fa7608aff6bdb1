"""The work of the worker, done once and now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.long_running.store import JOB_KIND as OPERATION
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import (
    Components,
    make_dependencies,
    make_job_worker,
    make_sweeper,
    open_components,
)
from spawnmesh_session.domain import job_kinds
from spawnmesh_session.jobs.sweep import Sweeper
from spawnmesh_session.operations.call_limits_feed import CallLimitsFeed
from spawnmesh_session.operations.revocation_feed import RevocationFeed
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.settings import SessionSettings


@asynccontextmanager
async def components_of(settings: SessionSettings) -> AsyncIterator[Components]:
    """Open the components of the service with these settings; nothing runs."""
    async with (
        start_process("session", settings) as process,
        open_components(process, settings) as components,
    ):
        yield components


@asynccontextmanager
async def dependencies_of(settings: SessionSettings) -> AsyncIterator[Dependencies]:
    """Build what the RPCs share, with these settings; nothing runs."""
    async with (
        start_process("session", settings) as process,
        open_components(process, settings) as components,
    ):
        revocations = RevocationFeed(components.database, process.revoked)
        call_limits = CallLimitsFeed(components.database, process.call_limits, settings.call_limits_ceiling)
        yield make_dependencies(process, components, settings, revocations, call_limits)


async def make_due(superuser_dsn: str, *tenants: str) -> None:
    """Make all waiting work of the tenants due now, but what deletes operations after a week."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for statement in (
            "update session.jobs set due_time = now()"
            " where tenant_id = any (%s) and due_time < now() + interval '1 day'",
            "update session.tenants set next_retention_time = now() where tenant_id = any (%s)",
            "update session.tenant_deletions set settle_time = now() where tenant_id = any (%s)",
        ):
            await link.execute(statement, (list(tenants),))


async def work_once(settings: SessionSettings, superuser_dsn: str, *tenants: str) -> None:
    """Run every waiting job of the tenants, and sweep, until nothing is due."""
    async with components_of(settings) as components:
        await make_due(superuser_dsn, *tenants)
        worker, sweep = make_job_worker(components, settings), make_sweeper(components, settings)
        await worker.run_due(*job_kinds.FOLLOW_UPS)
        await run_clean_ups(worker)
        await sweep_all(sweep)
        # Sessions and runs that ended above publish their ends.
        await worker.run_due(*job_kinds.FOLLOW_UPS)


async def sweep_all(sweep: Sweeper) -> None:
    """Sweep until nothing is due."""
    for work in (sweep.end_lost_runs, sweep.retain):
        while await work():
            pass


async def run_clean_ups(worker: JobWorker) -> None:
    """Run the jobs that finish what no request finishes, kind by kind, until none is due."""
    for kind in (
        job_kinds.UNDO_SPAWN,
        job_kinds.CLEAN_UP_SPAWN,
        job_kinds.DELETE_SESSION,
        OPERATION,
        job_kinds.PUSH_SETTINGS,
        job_kinds.EXPIRE_MODEL_CALL,
        job_kinds.WAKE_BUDGET,
        job_kinds.FIRE_SCHEDULE,
    ):
        await worker.run_due(kind)


@asynccontextmanager
async def job_worker_of(settings: SessionSettings) -> AsyncIterator[JobWorker]:
    """Build the worker of the jobs with these settings; nothing runs."""
    async with components_of(settings) as components:
        yield make_job_worker(components, settings)
