"""Background loops of the worker."""
