"""`python -m spawnmesh_session serve | worker | migrate`."""

import asyncio
import sys
from functools import partial

from spawnmesh_postgres.deployment import await_schema
from spawnmesh_postgres.jobs import install_job_tables
from spawnmesh_postgres.migrations import migrate_and_tell
from spawnmesh_postgres.schema_version import until_schema_known
from spawnmesh_runtime.ending import end
from spawnmesh_runtime.process import keep_what_is_there, run, start_process, stop_signals
from spawnmesh_runtime.server import answering_alone, run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_session.app import open_service, work
from spawnmesh_session.settings import SessionSettings


async def _serve(settings: SessionSettings) -> None:
    async with start_process("session", settings) as process:
        await await_schema("session", settings.database_url, partial(answering_alone, process))
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: SessionSettings) -> None:
    """Works until SIGTERM or SIGINT; a job that is cut off is worked on again by another worker."""
    async with start_process("session", settings) as process, asyncio.TaskGroup() as tasks:

        async def work_on_known_schema() -> None:
            await until_schema_known(settings.database_url, package="spawnmesh_session")
            keep_what_is_there()
            await process.health.ready()
            await work(process, settings)

        worker = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await end(worker, grace_seconds=settings.drain_grace_seconds)


def main() -> None:
    """Runs what the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "serve"
    settings = load_settings(SessionSettings)
    match command:
        case "serve":
            run(_serve(settings))
        case "worker":
            run(_work(settings))
        case "migrate":
            url = settings.database_owner_url
            migrate_and_tell(url, package="spawnmesh_session", schema="session", first=install_job_tables)
        case _:
            sys.exit(f"there is no {command!r}; choose serve, worker or migrate")


if __name__ == "__main__":
    main()
