"""`python -m spawnmesh_model_router serve|migrate`."""

import sys
from functools import partial

from spawnmesh_runtime.workarounds.startup_imports import startup_imports

with startup_imports():
    from spawnmesh_postgres.deployment import await_schema
    from spawnmesh_postgres.migrations import run_migrate_command
    from spawnmesh_runtime.process import run_process, start_process
    from spawnmesh_runtime.server import run_until_stopped, serve_not_ready
    from spawnmesh_runtime.settings import load_settings

    from spawnmesh_model_router.app import open_service
    from spawnmesh_model_router.settings import ModelRouterSettings, load_config


async def _serve(settings: ModelRouterSettings) -> None:
    async with start_process("model-router", settings) as process:
        await await_schema(
            "model-router", settings.database_url, partial(serve_not_ready, process), process.dependencies
        )
        async with open_service(process, settings) as server:
            await run_until_stopped(process, server)


def main(arguments: list[str]) -> None:
    """Run one command. Anything but `serve` and `migrate` exits with a line of usage."""
    match arguments:
        case ["serve"]:
            settings = load_settings(ModelRouterSettings)
            # Report a wrong file before waiting for the database.
            load_config(settings.config_file)
            run_process(_serve(settings))
        case ["migrate"]:
            settings = load_settings(ModelRouterSettings)
            run_migrate_command(
                settings.database_owner_url, package="spawnmesh_model_router", schema="model_router"
            )
        case _:
            raise SystemExit("usage: python -m spawnmesh_model_router serve|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
