"""The session service: tenants, sessions, runs, and the spawn and finalize sagas."""
