"""The console of the mesh."""
