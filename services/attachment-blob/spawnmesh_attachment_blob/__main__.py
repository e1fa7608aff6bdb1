"""`python -m spawnmesh_attachment_blob serve|worker|migrate|check`."""

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

from spawnmesh_attachment_blob.app import open_service, open_worker
from spawnmesh_attachment_blob.check import check_storage
from spawnmesh_attachment_blob.s3_calls import http_pool
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets


async def _serve(settings: AttachmentBlobSettings) -> None:
    async with start_process("attachment-blob", settings) as process:
        await await_schema("attachment-blob", settings.database_url, partial(answering_alone, process))
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: AttachmentBlobSettings) -> None:
    """Works until SIGTERM or SIGINT; what is cut off is found again by the next collection."""
    async with start_process("attachment-blob", settings) as process, asyncio.TaskGroup() as tasks:

        async def work_on_known_schema() -> None:
            await until_schema_known(settings.database_url, package="spawnmesh_attachment_blob")
            async with open_worker(process, settings) as worker:
                keep_what_is_there()
                await process.health.ready()
                await worker.work()

        working = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await end(working, grace_seconds=settings.drain_grace_seconds)


def _check(settings: AttachmentBlobSettings) -> None:
    """A line for each thing that was tried; ends with exit code 1 at one that went wrong."""
    with http_pool(settings) as http:
        for checked in check_storage(settings, TenantBuckets(settings, http)):
            if checked.advice:
                raise SystemExit(f"!! {checked.what}: {checked.advice}")
            print(f"ok {checked.what}")


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but the four ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(AttachmentBlobSettings)))
        case ["worker"]:
            run(_work(load_settings(AttachmentBlobSettings)))
        case ["migrate"]:
            owner_url = load_settings(AttachmentBlobSettings).database_owner_url
            migrate_and_tell(owner_url, package="spawnmesh_attachment_blob", schema="attachment_blob")
        case ["check"]:
            _check(load_settings(AttachmentBlobSettings))
        case _:
            raise SystemExit("usage: python -m spawnmesh_attachment_blob serve|worker|migrate|check")


if __name__ == "__main__":
    main(sys.argv[1:])
