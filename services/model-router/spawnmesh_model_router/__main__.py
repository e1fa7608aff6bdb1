"""`python -m spawnmesh_model_router serve|migrate`."""

import sys
from functools import partial

from spawnmesh_postgres.deployment import await_schema
from spawnmesh_postgres.migrations import migrate_and_tell
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import answering_alone, run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_model_router.app import open_service
from spawnmesh_model_router.config import load_config
from spawnmesh_model_router.settings import ModelRouterSettings


async def _serve(settings: ModelRouterSettings) -> None:
    async with start_process("model-router", settings) as process:
        await await_schema("model-router", settings.database_url, partial(answering_alone, process))
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but `serve` and `migrate` ends with a line of usage."""
    match arguments:
        case ["serve"]:
            settings = load_settings(ModelRouterSettings)
            load_config(settings.config_file)  # One that is wrong is to be told at once, before anything is waited for.
            run(_serve(settings))
        case ["migrate"]:
            settings = load_settings(ModelRouterSettings)
            migrate_and_tell(settings.database_owner_url, package="spawnmesh_model_router", schema="model_router")
        case _:
            raise SystemExit("usage: python -m spawnmesh_model_router serve|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
