"""The type of a setting that says where a database is and how to enter it."""

from typing import Annotated

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator

NOT_ONE = "is not a PostgreSQL URL; what is special in a password is percent-encoded, a % as %25"


def is_database_url(text: str) -> bool:
    """Whether libpq can read it: a URL, or `key=value` words."""
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:  # It quotes what it could not read, which may be the password.
        return False
    return True


def _checked(text: str) -> str:
    if not is_database_url(text):
        raise ValueError(NOT_ONE)
    return text


DatabaseUrl = Annotated[str, AfterValidator(_checked)]
"""A connection string of libpq's; a malformed one is refused without being repeated. The empty one stands for none."""
