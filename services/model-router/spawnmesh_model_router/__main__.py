"""`python -m spawnmesh_model_router serve|migrate`."""

import sys

from spawnmesh_postgres.migrations import migrate
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_model_router.app import open_service
from spawnmesh_model_router.settings import ModelRouterSettings


async def _serve(settings: ModelRouterSettings) -> None:
    async with start_process("model-router", settings) as process, open_service(process, settings) as server:
        await run_until_stopped(process, server)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but `serve` and `migrate` ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(ModelRouterSettings)))
        case ["migrate"]:
            settings = load_settings(ModelRouterSettings)
            migrate(settings.database_owner_url, package="spawnmesh_model_router", schema="model_router")
        case _:
            raise SystemExit("usage: python -m spawnmesh_model_router serve|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
