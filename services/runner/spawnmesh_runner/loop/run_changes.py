"""The hint of the session service that a run of this process was interrupted or killed."""

import asyncio
from contextlib import suppress

import structlog
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.errors import error_label
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_runner.clients.peers import Peers

# The service ends the stream before, and the runner's token ends with it.
_STREAM_SECONDS = 290.0
_PAUSE_SECONDS = 0.5

log = structlog.get_logger()


class RunChanges:
    """Wakes the heartbeats of all runs of this process."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event that the next change sets. Take it before the call that looks for changes."""
        return self._next

    def notify(self) -> None:
        """Wake all heartbeats that wait."""
        self._next.set()
        self._next = asyncio.Event()


async def wait_for_change(change: asyncio.Event, seconds: float) -> None:
    """Return at the change, or after the time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await change.wait()


async def follow_run_changes(peers: Peers, minter: TokenMinter, runner_id: str, changes: RunChanges) -> None:
    """Pass the hints on, for ever.

    While the session service cannot be reached, a run learns of an interrupt by its next heartbeat.
    """
    request = pb.WatchRunChangesRequest(runner_id=runner_id)
    is_reported = False
    while True:
        try:
            with use_token(minter.runner_token()):
                responses = peers.session.stream(
                    peers.runs.WatchRunChanges, request, timeout_seconds=_STREAM_SECONDS
                )
                async for _ in responses:
                    is_reported = False
                    changes.notify()
        except Exception as error:  # noqa: BLE001 - the next try may succeed, whatever the error
            raise_if_cancelled()
            if not is_reported:
                log.warning("run_changes_not_followed", error=error_label(error))
            is_reported = True
        await asyncio.sleep(_PAUSE_SECONDS)
