"""Clients of providers, and the source of their credentials."""
