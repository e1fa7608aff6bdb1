"""Entry point: `python -m spawnmesh_command` is the `spawnmesh` command."""

from spawnmesh_command.cli import main

if __name__ == "__main__":
    main()
