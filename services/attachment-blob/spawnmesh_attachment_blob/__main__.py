"""`python -m spawnmesh_attachment_blob serve|worker|migrate`."""

import asyncio
import sys

from spawnmesh_postgres.migrations import migrate
from spawnmesh_runtime.process import run, start_process, stop_signals
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_attachment_blob.app import open_service, open_worker
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings


async def _serve(settings: AttachmentBlobSettings) -> None:
    async with start_process("attachment-blob", settings) as process, open_service(process, settings) as server:
        await run_until_stopped(process, server)


async def _work(settings: AttachmentBlobSettings) -> None:
    """Works until SIGTERM or SIGINT; what is cut off is found again by the next collection."""
    async with (
        start_process("attachment-blob", settings),
        open_worker(settings) as worker,
        asyncio.TaskGroup() as tasks,
    ):
        working = tasks.create_task(worker.work(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        working.cancel()


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but the three ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(AttachmentBlobSettings)))
        case ["worker"]:
            run(_work(load_settings(AttachmentBlobSettings)))
        case ["migrate"]:
            owner_url = load_settings(AttachmentBlobSettings).database_owner_url
            migrate(owner_url, package="spawnmesh_attachment_blob", schema="attachment_blob")
        case _:
            raise SystemExit("usage: python -m spawnmesh_attachment_blob serve|worker|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
