"""Tenant transactions, named SQL and migrations on PostgreSQL."""
