"""Working only as long as the run is ours."""

import asyncio
from collections.abc import Coroutine

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import heed_cancellation
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import HeldToken

from spawnmesh_runner.domain import LOST, TRANSIENT
from spawnmesh_runner.mesh import Mesh

# Tokens outlive the leases that they are renewed with: whoever has but an old one has been away for longer than its lease.
_LOST = (*LOST, Reason.TOKEN_EXPIRED)


class LeaseLost(Exception):
    """The run is over, or in other hands, or may be since the lease could not be renewed in time."""


async def while_leased(
    mesh: Mesh, claimed: pb.ClaimedRun, held: HeldToken, work: Coroutine[None, None, None], *, heartbeat_share: float
) -> None:
    """Does the work while heartbeats, `heartbeat_share` of a lease apart, keep the run, and the token good that is held for it.

    Raises LeaseLost, with the work cancelled, as soon as it is lost; else what the work raises.
    """
    try:
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(_keep(mesh, claimed, held, heartbeat_share))
            await work
            beating.cancel()
    except BaseExceptionGroup as errors:
        lost, _ = errors.split(lambda error: isinstance(error, LeaseLost) or refused_with(error, *_LOST))
        if lost is not None:
            raise LeaseLost(_why(lost)) from errors
        raise errors.exceptions[0] from None


def _why(lost: BaseExceptionGroup[BaseException]) -> str:
    """What the first of them says: our own count of time, or a service's refusal."""
    first = lost.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first)


async def _keep(mesh: Mesh, claimed: pb.ClaimedRun, held: HeldToken, heartbeat_share: float) -> None:
    lease_seconds = claimed.lease_ttl.ToMilliseconds() / 1000
    pause = lease_seconds * heartbeat_share
    request = pb.HeartbeatRunRequest(epoch=claimed.run.epoch)
    renewed = monotonic_seconds()
    while True:
        await asyncio.sleep(pause)
        asked = monotonic_seconds()
        try:
            answer = await mesh.session.unary(mesh.runs.HeartbeatRun, request, timeout_seconds=pause)
        except MeshError as error:
            if error.reason not in TRANSIENT:
                raise
            heed_cancellation()
            # The session service counts from when it answered, later than we asked: by our count the lease is never longer than by its own.
            if asked + pause - renewed >= lease_seconds:
                raise LeaseLost(f"the lease could not be renewed in time: {error.reason}") from error
            pause = min(pause, lease_seconds / 10)
        else:
            renewed = asked
            held.token = answer.run_token or held.token
            pause = lease_seconds * heartbeat_share
