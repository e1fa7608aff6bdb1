"""The agent loop: claim runs, keep their leases, and take turns until each run has an answer."""
