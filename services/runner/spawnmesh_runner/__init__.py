"""Claims runs and carries them to a result."""
