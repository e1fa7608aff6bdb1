"""`python -m spawnmesh_hook serve|worker|migrate|webhook-secret`."""

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

from spawnmesh_hook.app import open_service, work
from spawnmesh_hook.bundled import read_bundled
from spawnmesh_hook.settings import HookSettings
from spawnmesh_hook.webhooks import derived_secret


async def _serve(settings: HookSettings) -> None:
    async with start_process("hook", settings) as process:
        await await_schema("hook", settings.database_url, partial(answering_alone, process))
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


async def _work(settings: HookSettings) -> None:
    """Works until SIGTERM or SIGINT; what is cut off is told again by another worker."""
    async with start_process("hook", settings) as process, asyncio.TaskGroup() as tasks:

        async def work_on_known_schema() -> None:
            await until_schema_known(settings.database_url, package="spawnmesh_hook")
            keep_what_is_there()
            await process.health.ready()
            await work(process, settings)

        worker = tasks.create_task(work_on_known_schema(), name="worker")
        with stop_signals() as stop:
            await stop.wait()
        await end(worker, grace_seconds=settings.drain_grace_seconds)


def _webhook_secret(settings: HookSettings, name: str) -> str:
    """What calls of a webhook that the operator runs are signed with, for whoever serves it."""
    if settings.signing_key_file is None:
        raise SystemExit("HOOK_SIGNING_KEY_FILE is not set: secrets are derived from that key")
    if not read_bundled(settings.bundled_plugins_file).named(name):
        raise SystemExit(f"there is no bundled plugin {name}")
    return derived_secret(settings.signing_key_file.read_bytes(), name, None)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything else ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(HookSettings)))
        case ["worker"]:
            run(_work(load_settings(HookSettings)))
        case ["migrate"]:
            owner_url = load_settings(HookSettings).database_owner_url
            migrate_and_tell(owner_url, package="spawnmesh_hook", schema="hook")
        case ["webhook-secret", name]:
            print(_webhook_secret(load_settings(HookSettings), name))
        case _:
            raise SystemExit("usage: python -m spawnmesh_hook serve|worker|migrate|webhook-secret NAME")


if __name__ == "__main__":
    main(sys.argv[1:])
