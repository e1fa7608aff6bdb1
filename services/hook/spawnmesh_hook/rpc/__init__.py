"""The RPCs: each has a module of its name."""
