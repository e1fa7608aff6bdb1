"""Groups of the mesh's reasons by what a runner does about them."""

from spawnmesh_core.reasons import Reason

RUN_LOST = (Reason.RUN_LEASE_LOST, Reason.WRITER_CLAIM_LOST)
"""Another runner has the run, or it is over. This runner must do nothing more in its name."""

PEER_UNAVAILABLE = (
    Reason.DEPENDENCY_UNAVAILABLE,
    Reason.DRAINING,
    Reason.POOL_EXHAUSTED,
    Reason.CONFLICT,
    Reason.SPAWN_IN_PROGRESS,
    Reason.CANCELLED,
)
"""The same call may succeed in a moment. A peer that shuts down answers CANCELLED."""

TRANSIENT = (*PEER_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
"""A call that can be repeated at no cost is repeated on these."""
