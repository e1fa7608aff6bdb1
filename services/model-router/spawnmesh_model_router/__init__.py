"""Model calls over a chain of candidates."""
