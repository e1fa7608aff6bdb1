"""What the worker does, done once and now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import Parts, open_parts, sweep_of, tellers_of
from spawnmesh_session.operations.sweep import Sweep
from spawnmesh_session.settings import SessionSettings


@asynccontextmanager
async def parts_of(settings: SessionSettings) -> AsyncIterator[Parts]:
    """The service's parts with these settings, nothing running."""
    async with start_process("session", settings) as process, open_parts(process, settings) as parts:
        yield parts


async def make_due(superuser_dsn: str, tenant: str) -> None:
    """Whatever of the tenant waits for its time is due now."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for statement in (
            "update session.dispatch set due_time = now() where kind <> 'RUN' and tenant_id = %s",
            "update session.tenants set retain_time = now() where tenant_id = %s",
            "update session.tenant_deletions set settle_time = now() where tenant_id = %s",
        ):
            await link.execute(statement, (tenant,))


async def work_once(settings: SessionSettings, superuser_dsn: str, tenant: str) -> None:
    """Every job that waits, every end that is to be told, and everything of the tenant that has to be swept."""
    async with parts_of(settings) as parts:
        async with parts.job_app.open_async():
            await parts.job_app.run_worker_async(
                wait=False, concurrency=4, install_signal_handlers=False, delete_jobs="successful"
            )
        await make_due(superuser_dsn, tenant)
        while await tellers_of(parts, settings).tell_due():
            pass
        await sweep_all(sweep_of(parts, settings))


async def sweep_all(sweep: Sweep) -> None:
    """Each kind until nothing is due."""
    for work in (
        sweep.end_lost_runs,
        sweep.undo_spawns,
        sweep.finish_deletions,
        sweep.retain,
        sweep.delete_tenants,
        sweep.tell_settings,
    ):
        while await work():
            pass
