"""`python -m spawnmesh_hook serve|migrate`."""

import sys

from spawnmesh_postgres.migrations import migrate
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_hook.app import open_service
from spawnmesh_hook.settings import HookSettings


async def _serve(settings: HookSettings) -> None:
    async with start_process("hook", settings) as process, open_service(process, settings) as server:
        await run_until_stopped(process, server)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but `serve` and `migrate` ends with a line of usage."""
    match arguments:
        case ["serve"]:
            settings = load_settings(HookSettings)
            run(_serve(settings))
        case ["migrate"]:
            migrate(load_settings(HookSettings).database_owner_url, package="spawnmesh_hook", schema="hook")
        case _:
            raise SystemExit("usage: python -m spawnmesh_hook serve|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
