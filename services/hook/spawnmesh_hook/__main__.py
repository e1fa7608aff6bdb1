"""The command `python -m spawnmesh_hook serve|worker|migrate|webhook-secret`."""

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

    from spawnmesh_hook.app import enable_bundled_hooks, open_service, open_worker
    from spawnmesh_hook.clients.webhook_secrets import secret_of_plugin
    from spawnmesh_hook.settings import HookSettings
    from spawnmesh_hook.store.bundled_plugins import read_bundled


async def _serve(settings: HookSettings) -> None:
    async with start_process("hook", settings) as process:
        await await_schema(
            "hook", settings.database_url, partial(serve_not_ready, process), process.dependencies
        )
        await enable_bundled_hooks(process, settings)
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: HookSettings) -> None:
    """Run the worker until SIGTERM or SIGINT.

    Another worker repeats the deliveries that are interrupted.
    """
    async with (
        start_process("hook", settings) as process,
        process.dependencies.periodic(),
        asyncio.TaskGroup() as tasks,
    ):

        async def work_on_known_schema() -> None:
            await wait_for_schema(settings.database_url, package="spawnmesh_hook")
            freeze_startup_objects()
            await process.health.ready()
            async with open_worker(process, settings) as worker:
                await worker.work_until_cancelled()

        working = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await cancel_and_wait(working, grace_seconds=settings.drain_grace_seconds)


def _webhook_secret(settings: HookSettings, name: str) -> str:
    """Return the secret that signs the calls of a bundled webhook."""
    if settings.signing_key_file is None:
        raise SystemExit("HOOK_SIGNING_KEY_FILE is not set: secrets are derived from that key")
    if not read_bundled(settings.bundled_plugins_file).has_name(name):
        raise SystemExit(f"there is no bundled plugin {name}")
    return secret_of_plugin(settings.signing_key_file.read_bytes(), name, None)


def main(arguments: list[str]) -> None:
    """Run one command. Exit with a line of usage for any other arguments."""
    match arguments:
        case ["serve"]:
            run_process(_serve(load_settings(HookSettings)))
        case ["worker"]:
            run_process(_work(load_settings(HookSettings)))
        case ["migrate"]:
            owner_url = load_settings(HookSettings).database_owner_url
            run_migrate_command(owner_url, package="spawnmesh_hook", schema="hook")
        case ["webhook-secret", name]:
            print(_webhook_secret(load_settings(HookSettings), name))
        case _:
            raise SystemExit("usage: python -m spawnmesh_hook serve|worker|migrate|webhook-secret NAME")


if __name__ == "__main__":
    main(sys.argv[1:])
