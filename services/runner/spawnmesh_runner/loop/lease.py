"""Work only while the run's lease is held."""

import asyncio
from collections.abc import Coroutine

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import ReplaceableToken

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.domain.reasons import RUN_LOST, TRANSIENT
from spawnmesh_runner.loop.handover import Handover
from spawnmesh_runner.loop.interruption import Interruption
from spawnmesh_runner.loop.run_changes import RunChanges, wait_for_change

# A token outlives the lease that it is renewed with. A runner whose token expired was cut off for
# longer than its lease.
_LOST = (*RUN_LOST, Reason.TOKEN_EXPIRED)


# The shortest time between two heartbeats.
_HINT_PAUSE_SECONDS = 0.5


class LeaseLost(Exception):
    """The run is over, another runner has it, or the lease was not renewed in time.

    In the last case `outage` is the error of the last heartbeat, and no runner may have it yet.
    """

    def __init__(self, why: str, outage: MeshError | None = None) -> None:
        super().__init__(why)
        self.outage = outage


async def work_under_lease(
    peers: Peers,
    claimed: pb.ClaimedRun,
    held: ReplaceableToken,
    work: Coroutine[None, None, None],
    interruption: Interruption,
    changes: RunChanges,
    handover: Handover,
    *,
    heartbeat_share: float,
) -> None:
    """Do the work while heartbeats renew the lease and the held token.

    The heartbeats are `heartbeat_share` of a lease apart, and one follows each of the changes. They
    report to the `interruption`. During a `handover`, a lost lease does not end the work.

    Raises LeaseLost, with the work cancelled, as soon as the lease is lost; otherwise what the work
    raises.
    """
    try:
        async with asyncio.TaskGroup() as group:
            heartbeats = group.create_task(
                _heartbeat(peers, claimed, held, interruption, changes, handover, heartbeat_share)
            )
            await work
            heartbeats.cancel()
    except BaseExceptionGroup as errors:
        lost, _ = errors.split(lambda error: isinstance(error, LeaseLost) or refused_with(error, *_LOST))
        if lost is not None:
            first = _first_of(lost)
            raise LeaseLost(str(first), getattr(first, "outage", None)) from errors
        raise errors.exceptions[0] from None


def _first_of(lost: BaseExceptionGroup[BaseException]) -> BaseException:
    first = lost.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def _heartbeat(
    peers: Peers,
    claimed: pb.ClaimedRun,
    held: ReplaceableToken,
    interruption: Interruption,
    changes: RunChanges,
    handover: Handover,
    heartbeat_share: float,
) -> None:
    lease_seconds = claimed.lease_ttl.ToMilliseconds() / 1000
    pause = lease_seconds * heartbeat_share
    request = pb.HeartbeatRunRequest(epoch=claimed.run.epoch)
    renewed, change, sent = monotonic_seconds(), changes.next, -_HINT_PAUSE_SECONDS
    while True:
        await wait_for_change(change, pause)
        # Another tenant may be the cause of the hints: they bring few heartbeats.
        await asyncio.sleep(max(0.0, sent + _HINT_PAUSE_SECONDS - monotonic_seconds()))
        sent, read_count, change = monotonic_seconds(), interruption.read_count, changes.next
        try:
            response = await peers.session.unary(peers.runs.HeartbeatRun, request, timeout_seconds=pause)
        except MeshError as error:
            if error.reason not in TRANSIENT:
                await handover.wait_until_failed()  # The lease may be given up: its call knows.
                raise
            raise_if_cancelled()
            # The session service counts from its response, which is later than this request. So the
            # lease is never longer here than in the service.
            if sent + pause - renewed >= lease_seconds:
                why = f"the lease could not be renewed in time: {error.reason}"
                raise LeaseLost(why, outage=error) from error
            pause = min(pause, lease_seconds / 10)
        else:
            renewed = sent
            held.token = response.run_token
            is_news = interruption.report(response.interrupt, read_count)
            pause = lease_seconds * (heartbeat_share if is_news else min(heartbeat_share, 0.1))
