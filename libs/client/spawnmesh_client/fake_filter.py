"""The filters of sessions that a FakeMesh knows: equalities of some fields, joined by AND."""

import re

from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import invalid

_COMPARISON = re.compile(
    r"\s*([a-z_]+)(?:\.([A-Za-z0-9_.-]+))?\s*=\s*(?:\"([^\"\\]*)\"|([^\s\"'()=<>!,\\]+))\s*"
)
_AND = re.compile(r"\bAND\b")


def accepts(text: str, session: session_pb2.Session) -> bool:
    """Return whether the filter accepts the session.

    Raises INVALID_REQUEST for a filter that a FakeMesh does not know; a mesh may know it.
    """
    return all(_holds(comparison, session) for comparison in _AND.split(text) if text.strip())


def _holds(comparison: str, session: session_pb2.Session) -> bool:
    found = _COMPARISON.fullmatch(comparison)
    if found is None:
        raise invalid("filter", "a FakeMesh knows `field = value`, joined by AND")
    name, key, quoted, word = found.groups()
    wanted = word if quoted is None else quoted
    run = session.latest_run
    match name, key:
        case (("agent_id" | "label" | "parent_session_id"), None):
            return str(getattr(session, name)) == wanted
        case "state", None:
            return session_pb2.SessionState.Name(session.state) == f"SESSION_STATE_{wanted}"
        case "run_state", None:
            return session_pb2.RunState.Name(run.state) == f"RUN_STATE_{wanted}"
        case "metadata", str():
            return key in session.metadata and session.metadata[key] == wanted
    raise invalid(
        "filter",
        "a FakeMesh knows agent_id, label, parent_session_id, state, run_state and metadata.KEY",
    )
