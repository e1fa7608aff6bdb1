"""Callers: the family that a run may access, and the epoch that its token names."""

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_session.domain.runs import CallingRun


def require_epoch(caller: Caller, epoch: int) -> None:
    """Raise CALLER_NOT_ALLOWED if the request names another epoch than the token."""
    if caller.epoch != epoch:
        raise MeshError(
            Reason.CALLER_NOT_ALLOWED,
            f"the token is for epoch {caller.epoch}, and the call speaks of epoch {epoch}",
            facts={"token_epoch": caller.epoch, "epoch": epoch},
        )


def family_root_of(caller: Caller) -> str:
    """Return the session whose family the caller may access; empty for a client."""
    return caller.session_id if caller.kind is CallerKind.RUN else ""


def calling_run_of(caller: Caller) -> CallingRun | None:
    """Return the calling run with the epoch of its token; None for a client."""
    if caller.kind is not CallerKind.RUN:
        return None
    return CallingRun(caller.session_id, caller.run_id, caller.epoch)
