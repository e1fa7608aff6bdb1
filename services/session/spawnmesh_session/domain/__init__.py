"""The rules of tenants, sessions, runs, spawns and messages: frozen values and pure functions."""
