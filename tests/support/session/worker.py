"""The work of the worker, done once and now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import (
    Components,
    make_dependencies,
    make_event_relay,
    make_sweeper,
    open_components,
)
from spawnmesh_session.jobs.sweep import Sweeper
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
        yield make_dependencies(process, components, settings, revocations)


async def make_due(superuser_dsn: str, *tenants: str) -> None:
    """Make all waiting work of the tenants due now."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn, autocommit=True) as link:
        for statement in (
            "update session.work_queue set due_time = now() where kind <> 'RUN' and tenant_id = any (%s)",
            "update session.tenants set next_retention_time = now() where tenant_id = any (%s)",
            "update session.tenant_deletions set settle_time = now() where tenant_id = any (%s)",
        ):
            await link.execute(statement, (list(tenants),))


async def work_once(settings: SessionSettings, superuser_dsn: str, *tenants: str) -> None:
    """Run every waiting job, publish every pending event, and sweep everything of the tenants."""
    async with components_of(settings) as components:
        async with components.job_app.open_async():
            await components.job_app.run_worker_async(
                wait=False,
                concurrency=4,
                install_signal_handlers=False,
                listen_notify=False,
                delete_jobs="successful",
            )
        await make_due(superuser_dsn, *tenants)
        while await make_event_relay(components, settings).relay_due():
            pass
        await sweep_all(make_sweeper(components, settings))


async def sweep_all(sweep: Sweeper) -> None:
    """Sweep each kind until nothing is due."""
    for work in (
        sweep.end_lost_runs,
        sweep.undo_spawns,
        sweep.finish_deletions,
        sweep.retain,
        sweep.purge_tenants,
        sweep.push_settings,
    ):
        while await work():
            pass
