"""`python -m spawnmesh_transcript serve

worker

migrate`.
"""

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

    from spawnmesh_transcript.app import open_service, open_worker
    from spawnmesh_transcript.settings import TranscriptSettings


async def _serve(settings: TranscriptSettings) -> None:
    async with start_process("transcript", settings) as process:
        await await_schema(
            "transcript", settings.database_url, partial(serve_not_ready, process), process.dependencies
        )
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: TranscriptSettings) -> None:
    """Work until SIGTERM or SIGINT, and then finish what is in flight within
    `drain_grace_seconds`.

    The next round repeats what is cut off, and another worker the jobs.
    """
    async with (
        start_process("transcript", settings) as process,
        process.dependencies.periodic(),
        asyncio.TaskGroup() as tasks,
    ):
        with stop_signals() as stop:

            async def work_on_known_schema() -> None:
                await wait_for_schema(settings.database_url, package="spawnmesh_transcript")
                async with open_worker(process, settings, stop) as worker:
                    freeze_startup_objects()
                    await process.health.ready()
                    await worker.work()

            working = tasks.create_task(work_on_known_schema(), name="worker")
            await stop.wait()
            await asyncio.wait([working], timeout=settings.drain_grace_seconds)
        await cancel_and_wait(working, grace_seconds=0)


def main(arguments: list[str]) -> None:
    """Run one command until it ends.

    Another command than `serve`, `worker` and `migrate` prints the usage.
    """
    match arguments:
        case ["serve"]:
            run_process(_serve(load_settings(TranscriptSettings)))
        case ["worker"]:
            run_process(_work(load_settings(TranscriptSettings)))
        case ["migrate"]:
            owner_url = load_settings(TranscriptSettings).database_owner_url
            run_migrate_command(owner_url, package="spawnmesh_transcript", schema="transcript")
        case _:
            raise SystemExit("usage: python -m spawnmesh_transcript serve|worker|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
