"""The checks of `spawnmesh doctor`."""
