"""The session service with the real other services, served in the process of the test."""

from tests.support.session.fixtures import (
    _served_mesh,
    empty_queue,
    mesh,
    migrated,
    open_mesh,
    open_peers,
    peers,
    remains,
    session_database,
    session_tables,
)

__all__ = [
    "_served_mesh",
    "empty_queue",
    "mesh",
    "migrated",
    "open_mesh",
    "open_peers",
    "peers",
    "remains",
    "session_database",
    "session_tables",
]
