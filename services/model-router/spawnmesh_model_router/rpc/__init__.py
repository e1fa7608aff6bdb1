"""RPCs: a module for each of them, named like it."""
