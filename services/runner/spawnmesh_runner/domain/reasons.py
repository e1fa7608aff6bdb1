"""Groups of the mesh's reasons by what a runner does about them."""

from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

RUN_LOST = (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST, Reason.TOKEN_REVOKED)
"""Another runner has the run, or it is over. This runner must do nothing more in its name."""

PEER_UNAVAILABLE = (
    Reason.DEPENDENCY_UNAVAILABLE,
    Reason.DRAINING,
    Reason.POOL_EXHAUSTED,
    Reason.RATE_LIMITED,
    Reason.CONFLICT,
    Reason.SPAWN_IN_PROGRESS,
    Reason.CANCELLED,
)
"""The same call may succeed in a moment. A peer that shuts down answers CANCELLED."""

TRANSIENT = (*PEER_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
"""A call that can be repeated at no cost is repeated on these."""

_SPAWN_GATE = "BEFORE_SPAWN"


def is_passing(error: MeshError, transient: tuple[Reason, ...] = TRANSIENT) -> bool:
    """Return whether the same call may succeed in a moment: for one of these reasons, or because
    an outage undid a spawn, which a repeat of its request_id begins again.
    """
    return error.reason in transient or is_undone_by_outage(error)


def may_succeed_later(error: MeshError) -> bool:
    """Return whether the same call may succeed in a moment, or after a longer outage."""
    return is_passing(error) or is_transient(error)


def is_undone_by_outage(error: MeshError) -> bool:
    """Return whether a spawn was undone because something was unavailable, such as a plugin that
    must allow it.
    """
    if error.reason is Reason.PLUGIN_FAILED:
        return error.facts.get("hook") == _SPAWN_GATE and is_transient(error)
    return error.reason is Reason.SPAWN_FAILED and error.status is Status.UNAVAILABLE
