"""The `spawnmesh` command."""

import sys


def main() -> None:
    """The console script. Ctrl-C ends it with exit code 130, also while all that it is made of is being loaded."""
    try:
        from spawnmesh_client.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
