"""Find replicas that keep their connections open and do not answer, and leave them.

A stopped or frozen process keeps its connections, since its kernel acknowledges what the process
does not read. The keepalive of gRPC does not notice it while calls are made: each write puts off
the next ping. So this probe makes health checks while a call waits for its answer. If one is not
answered in time, it connects anew, and calls go only to replicas that accept the new connection.
If no replica accepts one either, waiting calls are refused until one does.
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
# While no replica answers, waiting calls are refused soon after SILENT_SECONDS.
_AWAY_PAUSE_SECONDS = 0.25
# Round robin gives them to different replicas.
_CHECKS_AT_ONCE = 3


class PeerSilent(Exception):
    """The replica of the call does not answer, so the probe left the call."""


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits for its next message.

    `since` is a monotonic time. `is_suspect` says that the call may be on a connection to a silent
    replica. The probe cannot tell, and leaves it when it has waited for `patience_seconds`. A
    call that may be repeated needs none. `was_left` says that the probe cancelled the call.
    """

    cancel: Callable[[], object]
    patience_seconds: float
    since: float = 0.0
    is_suspect: bool = False
    was_left: bool = False

    def leave(self) -> None:
        """Cancel the call, since its replica is silent."""
        self.was_left = True
        self.cancel()

    def is_why_cancelled(self) -> bool:
        """Return whether a CancelledError means that the probe left the call, and not
        that the current task is cancelled.
        """
        task = asyncio.current_task()
        return self.was_left and not (task is not None and task.cancelling())


class SilenceProbe:
    """Checks the replicas behind a channel while a call on it is silent.

    It costs nothing while calls are answered within SILENT_SECONDS.
    """

    def __init__(self, service: str, channel: RenewableChannel) -> None:
        self.is_away = False
        """No replica answers at the moment."""
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
            self._look_later()

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

    def _look_later(self) -> None:
        pause = _AWAY_PAUSE_SECONDS if self.is_away else self._pause
        self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            self.is_away = False  # Nothing is known without checks.
            return
        if self._leave_silent_calls() and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._probe())
        self._look_later()

    def _leave_silent_calls(self) -> bool:
        """Return whether calls are silent, and leave those that have nothing to wait for."""
        now = monotonic_seconds()
        silent = [call for call in self._waiting if now - call.since >= SILENT_SECONDS]
        for call in silent:
            if self.is_away or (call.is_suspect and now - call.since >= call.patience_seconds):
                call.leave()
        return bool(silent)

    async def _probe(self) -> None:
        answers = await self._ask()
        if all(answers):
            self.is_away = False
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
            return
        self._pause = SILENT_SECONDS
        if not self.is_away:
            structlog.get_logger().warning("peer_silent", peer=self._service)
            self._channel.renew()
            for call in self._waiting:
                call.is_suspect = True
            self._leave_silent_calls()
            answers = await self._ask()
        self.is_away = not any(answers)
        self._leave_silent_calls()

    async def _ask(self) -> list[bool]:
        return await asyncio.gather(*(self._is_answered() for _ in range(_CHECKS_AT_ONCE)))

    async def _is_answered(self) -> bool:
        """Return whether a health check gets an answer, of whatever kind."""
        try:
            await self._check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True
