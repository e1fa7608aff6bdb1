"""The Python client and the `spawnmesh` command."""
