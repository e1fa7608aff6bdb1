"""Pictures of every page of the console: `python -m tests.screenshots`, or `make screenshots`."""
