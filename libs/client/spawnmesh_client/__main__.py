"""Entry point: `python -m spawnmesh_client` is the `spawnmesh` command."""

from spawnmesh_client.cli import main

if __name__ == "__main__":
    main()
