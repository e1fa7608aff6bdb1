"""The type of a setting for a database URL."""

from typing import Annotated

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator

NOT_A_URL = (
    "is not a PostgreSQL URL; percent-encode the special characters of a password, for example % as %25"
)


def is_database_url(text: str) -> bool:
    """Return whether libpq can parse the text: a URL, or `key=value` words."""
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:  # Its text quotes the input, which may have the password.
        return False
    return True


def _checked(text: str) -> str:
    if not is_database_url(text):
        raise ValueError(NOT_A_URL)
    return text


DatabaseUrl = Annotated[str, AfterValidator(_checked)]
"""A connection string of libpq.

The error for a malformed one does not repeat it. '' means no database.
"""
