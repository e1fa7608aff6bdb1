"""Entry point: `python -m spawnmesh_console serve`."""

import sys

from spawnmesh_runtime.workarounds.startup_imports import startup_imports

with startup_imports():
    from spawnmesh_runtime.process import run_process, start_process
    from spawnmesh_runtime.settings import load_settings

    from spawnmesh_console.app import open_app
    from spawnmesh_console.server import serve_until_stopped
    from spawnmesh_console.settings import ConsoleSettings


async def _serve(settings: ConsoleSettings) -> None:
    async with start_process("console", settings) as process, open_app(settings) as app:
        await serve_until_stopped(app, settings, process.health)


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "serve"
    if command != "serve":
        sys.exit(f"there is no {command!r}; choose serve")
    run_process(_serve(load_settings(ConsoleSettings)))


if __name__ == "__main__":
    main()
