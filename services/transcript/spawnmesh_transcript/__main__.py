"""`python -m spawnmesh_transcript serve|worker|migrate`."""

import asyncio
import sys
from functools import partial

from spawnmesh_postgres.deployment import await_schema
from spawnmesh_postgres.migrations import migrate_and_tell
from spawnmesh_postgres.schema_version import until_schema_known
from spawnmesh_runtime.ending import end
from spawnmesh_runtime.process import keep_what_is_there, run, start_process, stop_signals
from spawnmesh_runtime.server import answering_alone, run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_transcript.app import open_service, open_worker
from spawnmesh_transcript.settings import TranscriptSettings


async def _serve(settings: TranscriptSettings) -> None:
    async with start_process("transcript", settings) as process:
        await await_schema("transcript", settings.database_url, partial(answering_alone, process))
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: TranscriptSettings) -> None:
    """Works until SIGTERM or SIGINT, and then to the end of what is under way, for no longer than `drain_grace_seconds`.

    What is cut off is found again by the next round.
    """
    async with start_process("transcript", settings) as process, asyncio.TaskGroup() as tasks:
        with stop_signals() as stop:

            async def work_on_known_schema() -> None:
                await until_schema_known(settings.database_url, package="spawnmesh_transcript")
                async with open_worker(process, settings, stop) as worker:
                    keep_what_is_there()
                    await process.health.ready()
                    await worker.work()

            working = tasks.create_task(work_on_known_schema(), name="worker")
            await stop.wait()
            await asyncio.wait([working], timeout=settings.drain_grace_seconds)
        await end(working, grace_seconds=0)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but `serve`, `worker` and `migrate` ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(TranscriptSettings)))
        case ["worker"]:
            run(_work(load_settings(TranscriptSettings)))
        case ["migrate"]:
            owner_url = load_settings(TranscriptSettings).database_owner_url
            migrate_and_tell(owner_url, package="spawnmesh_transcript", schema="transcript")
        case _:
            raise SystemExit("usage: python -m spawnmesh_transcript serve|worker|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
