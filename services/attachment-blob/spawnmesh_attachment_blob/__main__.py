"""`python -m spawnmesh_attachment_blob serve|worker|migrate|check`."""

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

    from spawnmesh_attachment_blob.app import open_service, open_worker
    from spawnmesh_attachment_blob.clients.s3_calls import http_pool
    from spawnmesh_attachment_blob.clients.storage_check import check_storage
    from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
    from spawnmesh_attachment_blob.settings import AttachmentBlobSettings


async def _serve(settings: AttachmentBlobSettings) -> None:
    async with start_process("attachment-blob", settings) as process:
        await await_schema(
            "attachment-blob", settings.database_url, partial(serve_not_ready, process), process.dependencies
        )
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: AttachmentBlobSettings) -> None:
    """Work until SIGTERM or SIGINT. The next collection resumes interrupted work."""
    async with (
        start_process("attachment-blob", settings) as process,
        process.dependencies.periodic(),
        asyncio.TaskGroup() as tasks,
    ):

        async def work_on_known_schema() -> None:
            await wait_for_schema(settings.database_url, package="spawnmesh_attachment_blob")
            async with open_worker(process, settings) as worker:
                freeze_startup_objects()
                await process.health.ready()
                await worker.work()

        working = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await cancel_and_wait(working, grace_seconds=settings.drain_grace_seconds)


def _check(settings: AttachmentBlobSettings) -> None:
    """Print a line for each step. Exit with code 1 at a step that fails."""
    with http_pool(settings) as http:
        for result in check_storage(settings, http, TenantBuckets(settings, http)):
            if result.advice:
                raise SystemExit(f"!! {result.step}: {result.advice}")
            print(f"ok {result.step}")


def main(arguments: list[str]) -> None:
    """Run one command. Print the usage for anything else."""
    match arguments:
        case ["serve"]:
            run_process(_serve(load_settings(AttachmentBlobSettings)))
        case ["worker"]:
            run_process(_work(load_settings(AttachmentBlobSettings)))
        case ["migrate"]:
            owner_url = load_settings(AttachmentBlobSettings).database_owner_url
            run_migrate_command(owner_url, package="spawnmesh_attachment_blob", schema="attachment_blob")
        case ["check"]:
            _check(load_settings(AttachmentBlobSettings))
        case _:
            raise SystemExit("usage: python -m spawnmesh_attachment_blob serve|worker|migrate|check")


if __name__ == "__main__":
    main(sys.argv[1:])
