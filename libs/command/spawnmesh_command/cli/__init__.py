"""The `spawnmesh` command."""

import sys


def main() -> None:
    """Run the console script. Ctrl-C ends it with exit code 130, also during its imports."""
    try:
        from spawnmesh_command.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
