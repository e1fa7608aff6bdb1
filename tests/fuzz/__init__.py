"""Random and mutated input for what judges names and base64: `python -m tests.fuzz names --seconds 60`."""
