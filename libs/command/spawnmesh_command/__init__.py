"""The `spawnmesh` command."""
