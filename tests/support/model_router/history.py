"""Requests as a provider gets them."""

from typing import Any


def names_in(body: dict[str, Any]) -> set[str]:
    """Return each value of a key `name` in the request."""
    found: set[str] = set()
    pending: list[Any] = [body]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            found |= {value for key, value in one.items() if key == "name" and isinstance(value, str)}
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return found
