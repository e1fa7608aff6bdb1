"""Entry point: `python -m spawnmesh_runner serve`."""

import sys

from spawnmesh_runtime.workarounds.startup_imports import startup_imports

with startup_imports():
    from spawnmesh_runtime.process import run_process, start_process
    from spawnmesh_runtime.server import run_until_stopped
    from spawnmesh_runtime.settings import load_settings

    from spawnmesh_runner.app import open_service
    from spawnmesh_runner.settings import RunnerSettings


async def _serve(settings: RunnerSettings) -> None:
    async with start_process("runner", settings) as process, open_service(process, settings) as server:
        await run_until_stopped(process, server)


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "serve"
    if command != "serve":
        sys.exit(f"there is no {command!r}; choose serve")
    run_process(_serve(load_settings(RunnerSettings)))


if __name__ == "__main__":
    main()
