"""The runtime of every process: server, interceptors, channels, auth, telemetry."""
