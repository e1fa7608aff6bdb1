"""The tools of an agent: one module for each, and `calling` with what they share."""
