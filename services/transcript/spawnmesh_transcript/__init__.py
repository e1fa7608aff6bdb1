"""Append-only history behind a one-writer fence."""
