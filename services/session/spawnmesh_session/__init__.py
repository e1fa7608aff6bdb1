"""Tenants, sessions, runs, the spawn and finalize sagas."""
