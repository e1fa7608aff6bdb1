"""How any Spawnmesh process runs: server, interceptors, channels, auth, telemetry."""
