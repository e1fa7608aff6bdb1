"""Find replicas that keep their connections open and do not answer, and leave them.

A stopped or frozen process keeps its connections, since its kernel acknowledges what the process
does not read. The keepalive of gRPC does not notice it while calls are made: each write puts off
the next ping. So this probe makes health checks while a call waits for its answer. If one is not
answered in time, it connects anew, and calls go only to replicas that accept the new connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_runtime.renewable_channel import RenewableChannel

SILENT_SECONDS = 1.5
"""A call that waits longer than this for its next message makes the probe look."""
_ANSWER_SECONDS = 1.5
# While all checks are answered, the call only takes long, and the probe looks less often.
_LONGEST_PAUSE_SECONDS = 4.0
# Round robin gives them to different replicas.
_CHECKS_AT_ONCE = 3


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits for its next message since `since`, a monotonic time.

    `cancel` is None if the call may not be repeated. `is_suspect` says that it may be on a
    connection to a silent replica. `was_left` says that the probe cancelled it, so that its caller
    repeats it.
    """

    cancel: Callable[[], object] | None = None
    since: float = 0.0
    is_suspect: bool = False
    was_left: bool = False


class SilenceProbe:
    """Checks the replicas behind a channel while a call on it is silent.

    It costs nothing while calls are answered within SILENT_SECONDS.
    """

    def __init__(self, service: str, channel: RenewableChannel) -> None:
        self._service = service
        self._channel = channel
        self._check = health_pb2_grpc.HealthStub(channel).Check
        self._waiting: dict[WaitingCall, None] = {}  # The one that waits longest comes first.
        self._pause = SILENT_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None

    def waits(self, call: WaitingCall) -> None:
        """Note that the call waits for its next message from now on."""
        self._waiting.pop(call, None)
        call.since = monotonic_seconds()
        self._waiting[call] = None
        if self._timer is None:
            self._pause = SILENT_SECONDS
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def answered(self, call: WaitingCall) -> None:
        """Note that the call has a message, or has ended."""
        self._waiting.pop(call, None)

    async def close(self) -> None:
        """Stop probing. The channel is closed by its owner."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        silent = self._silent_calls()
        for call in silent:
            if call.is_suspect and call.cancel is not None:
                call.was_left = True
                call.cancel()
        if silent and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._probe())
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def _silent_calls(self) -> list[WaitingCall]:
        latest = monotonic_seconds() - SILENT_SECONDS
        return [call for call in self._waiting if call.since <= latest]

    async def _probe(self) -> None:
        if all(await asyncio.gather(*(self._is_answered() for _ in range(_CHECKS_AT_ONCE)))):
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
            return
        self._pause = SILENT_SECONDS
        structlog.get_logger().warning("peer_silent", peer=self._service)
        self._channel.renew()
        for call in self._waiting:
            call.is_suspect = True

    async def _is_answered(self) -> bool:
        """Return whether a health check gets an answer, of whatever kind."""
        try:
            await self._check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True
