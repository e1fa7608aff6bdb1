"""The `spawnmesh` command."""

from spawnmesh_client.cli.app import main

__all__ = ["main"]
