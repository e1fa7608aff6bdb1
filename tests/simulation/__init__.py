"""A mesh of any size, simulated with costs that are measured on this machine."""
