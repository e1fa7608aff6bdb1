"""Run `python -m spawnmesh_session serve | worker | migrate`."""

import asyncio
import sys
from functools import partial

from spawnmesh_runtime.workarounds.startup_imports import startup_imports

with startup_imports():
    from spawnmesh_postgres.deployment import await_schema
    from spawnmesh_postgres.migrations import run_migrate_command
    from spawnmesh_postgres.schema_version import wait_for_schema
    from spawnmesh_runtime.process import run_process, start_process, stop_signals
    from spawnmesh_runtime.server import run_until_stopped, serve_not_ready
    from spawnmesh_runtime.settings import load_settings
    from spawnmesh_runtime.shutdown import cancel_and_wait
    from spawnmesh_runtime.workarounds.gc_freeze import freeze_startup_objects

    from spawnmesh_session.app import open_service, work
    from spawnmesh_session.settings import SessionSettings


async def _serve(settings: SessionSettings) -> None:
    async with start_process("session", settings) as process:
        await await_schema(
            "session", settings.database_url, partial(serve_not_ready, process), process.dependencies
        )
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: SessionSettings) -> None:
    """Work until SIGTERM or SIGINT. Another worker retries the jobs that are interrupted."""
    async with (
        start_process("session", settings) as process,
        process.dependencies.periodic(),
        asyncio.TaskGroup() as tasks,
    ):

        async def work_on_known_schema() -> None:
            await wait_for_schema(settings.database_url, package="spawnmesh_session")
            freeze_startup_objects()
            await process.health.ready()
            await work(process, settings)

        worker = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await cancel_and_wait(worker, grace_seconds=settings.drain_grace_seconds)


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "serve"
    settings = load_settings(SessionSettings)
    match command:
        case "serve":
            run_process(_serve(settings))
        case "worker":
            run_process(_work(settings))
        case "migrate":
            url = settings.database_owner_url
            run_migrate_command(url, package="spawnmesh_session", schema="session")
        case _:
            sys.exit(f"there is no {command!r}; choose serve, worker or migrate")


if __name__ == "__main__":
    main()
