"""The session service with the real other services, served in the process of the test."""

from tests.support.session.fixtures import (
    _served_mesh,
    migrated,
    open_mesh,
    open_peers,
    peers,
    session_database,
)

__all__ = ["_served_mesh", "migrated", "open_mesh", "open_peers", "peers", "session_database"]
