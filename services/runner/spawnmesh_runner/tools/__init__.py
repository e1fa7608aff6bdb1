"""The tools of an agent: one module for each, and the registry that lists them."""
