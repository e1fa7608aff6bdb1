"""Measures what the mesh costs: `python -m tests.bench`, or `make bench`."""
