"""The background work of the service; `jobs.worker` starts it."""
