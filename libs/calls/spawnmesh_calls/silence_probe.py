"""Find replicas that keep their connections open and do not answer, and leave them.

A stopped or frozen process keeps its connections, since its kernel acknowledges what the process
does not read. The keepalive of gRPC does not notice it while calls are made: each write puts off
the next ping. So this probe makes health checks while a call waits for its answer. If one is late,
it connects anew and makes them there as well. Calls then leave the replicas that do not answer. If
none answers on either connection, calls are refused until one does. A replica that answers the
checks after all was only busy, and keeps its calls.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc
import grpc.aio
from spawnmesh_core.answer_times import AnswerTimes
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_calls.renewable_channel import RenewableChannel

SILENT_SECONDS = 0.4
"""A call that waits longer than this for its next message makes the probe look, unless its service
sends one at longer intervals.
"""
# The times to wait for health checks: on the old connections until there are new ones, then on the
# old ones alone, then on the new ones alone. A busy replica may answer late, so each check has two
# of them, and an answer to any call in their sum says that the service lives. If recent checks were
# slow, the times are up to three times as long.
_LATE_SECONDS = 0.3
_OLD_SECONDS = 0.5
_NEW_SECONDS = 0.3
# A wait that takes this much longer than planned says that this process was held up itself.
_HELD_UP_RATIO = 1.5
# While all checks are answered, the call only takes long, and makes the probe look less often.
_LONGEST_PAUSE_SECONDS = 4.0
_SHORTEST_PAUSE_SECONDS = 0.2
# After checks that were late, so that a busy replica does not get a new connection each time.
_SLOW_PAUSE_SECONDS = 2.0
_CHECK_SECONDS = 5.0
# The time for which all replicas must be silent before a call that must not be repeated is left.
_AWAY_TIMEOUT_SECONDS = 3.0
# Round robin gives them to different replicas.
_CHECKS_AT_ONCE = 3

# The standard health check, for the whole server. Its request is an empty message.
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

ReportSilence = Callable[[str], None]
"""Report that replicas of the service of this name do not answer."""

_Checks = list[asyncio.Task[grpc.StatusCode]]
_Codes = frozenset[grpc.StatusCode]
_Enough = Callable[[Iterable[bool]], bool]

# A replica may answer with any other code. If a connection is refused or breaks, calls fail at once
# by themselves; but the end of a silence is an answer.
_TOO_LATE: _Codes = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED})
_NO_CONNECTION: _Codes = _TOO_LATE | {grpc.StatusCode.UNAVAILABLE}


class PeerSilent(Exception):
    """The replica of the call does not answer, so the probe left the call or did not make it."""


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call that waits for its next message.

    `quiet_seconds` is the time in which it expects a message. The probe looks if it takes longer.
    `since` and `next_look` are monotonic times. `is_suspect` says that the call may be on a
    connection to a silent replica. The probe cannot tell, and leaves it when it has waited for
    `timeout_seconds`. A call that may be repeated needs none. `was_left` says that the probe
    cancelled the call.
    """

    cancel: Callable[[], object]
    timeout_seconds: float
    quiet_seconds: float = SILENT_SECONDS
    since: float = 0.0
    next_look: float = 0.0
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

    It costs nothing while each call has its next message within its `quiet_seconds`.
    """

    call_timeout_seconds = 5.0
    """The time after which a suspect call that must not be repeated is left."""
    slowness = 1.0
    """A replica may take so many times longer to answer than on a dedicated processor. A program on
    an overcommitted machine raises it.
    """
    shortest_round_seconds = _SHORTEST_PAUSE_SECONDS
    """The least time between two rounds of checks while no replica answers."""

    def __init__(self, service: str, channel: RenewableChannel, report_silence: ReportSilence) -> None:
        self._away_since: float | None = None
        self._service = service
        self._channel = channel
        self._report_silence = report_silence
        self._check = channel.unary_unary(
            _HEALTH_CHECK, request_serializer=bytes, response_deserializer=bytes
        )
        self._answer_count = 0
        self._times = AnswerTimes(_LATE_SECONDS + _OLD_SECONDS)
        self._silent_at = 0.0
        self._waiting: dict[WaitingCall, None] = {}
        self._slow_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None
        self._clearing: set[asyncio.Task[None]] = set()

    @property
    def is_away(self) -> bool:
        """No replica answers at the moment, so a new call would not be answered either."""
        return self._away_since is not None

    @property
    def timeout_factor(self) -> float:
        """The factor of the times that the probe waits: more than 1 if recent answers were slow."""
        return self._times.timeout_factor() * self.slowness

    def waits(self, call: WaitingCall) -> None:
        """Note that the call waits for its next message from now on."""
        call.since = monotonic_seconds()
        call.next_look = call.since + call.quiet_seconds
        self._waiting[call] = None
        if self._timer is None or self._timer.when() > call.next_look:
            self._look_at(call.next_look)

    def answered(self, call: WaitingCall) -> None:
        """Note that the call has a message."""
        self._answer_count += 1
        call.is_suspect = False
        self.ended(call)

    def ended(self, call: WaitingCall) -> None:
        """Note that the call does not wait any more."""
        self._waiting.pop(call, None)

    async def close(self) -> None:
        """Stop probing. The channel is closed by its owner."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        running = self._clearing | ({self._probing} if self._probing is not None else set())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _look_at(self, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The clock of the loop is the monotonic one.
        self._timer = asyncio.get_running_loop().call_at(time, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        self._leave_silent_calls()
        now = monotonic_seconds()
        due = [call for call in self._waiting if call.next_look <= now]
        if due and now >= self._slow_until and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe())
            for call in due:
                call.next_look = now + min(now - call.since, _LONGEST_PAUSE_SECONDS)
        is_leaving = self.is_away or any(call.is_suspect for call in self._waiting)
        next_look = now if is_leaving else min(call.next_look for call in self._waiting)
        self._look_at(max(now + _SHORTEST_PAUSE_SECONDS, next_look))

    def _leave_silent_calls(self) -> None:
        now = monotonic_seconds()
        for call in list(self._waiting):
            if call.was_left:
                continue
            is_given_up = call.is_suspect and now - call.since >= call.timeout_seconds
            if self._away_since is not None:
                timeout = _AWAY_TIMEOUT_SECONDS * self.slowness if call.timeout_seconds else 0.0
                is_given_up |= now - self._away_since >= timeout
            if is_given_up:
                call.leave()

    async def _probe(self) -> None:
        seen, factor = self._answer_count, self.timeout_factor
        checks = old = self._ask()
        try:
            if await _are_answered(all, old, _LATE_SECONDS * factor):
                return
            self._channel.renew()
            on_old = list(self._waiting)
            new = self._ask()
            checks = old + new
            is_left = False
            if not await _are_answered(all, old, _OLD_SECONDS * factor):
                is_left = await _are_answered(any, new, _NEW_SECONDS * factor)
            # A busy replica answers in the order of the questions.
            if _answers(all, old, _TOO_LATE):
                self._slow_until = monotonic_seconds() + _SLOW_PAUSE_SECONDS
                return
            self._report_silence(self._service)
            self._silent_at = monotonic_seconds()
            if is_left or self._answer_count != seen or _answers(any, old, _TOO_LATE):
                suspects = [call for call in on_old if not call.is_suspect]
                for call in suspects:
                    call.is_suspect = True
                self._leave_silent_calls()
                checks = new
                clearing = asyncio.create_task(_clear_if_answered(suspects, old))
                self._clearing.add(clearing)
                clearing.add_done_callback(self._clearing.discard)
                return
            await self._be_away_until_answered(checks)
        finally:
            await _cancel(checks)

    async def _be_away_until_answered(self, checks: _Checks) -> None:
        """Refuse calls until a replica answers. A connection that cannot be made is no answer."""
        self._away_since = monotonic_seconds()
        self._leave_silent_calls()
        try:
            round_end = monotonic_seconds() + self.shortest_round_seconds
            while not await _are_answered(any, checks, _CHECK_SECONDS, _NO_CONNECTION):
                for check in checks:
                    check.cancel()
                if not self._is_wanted(self._away_since):
                    return
                await asyncio.sleep(max(_SHORTEST_PAUSE_SECONDS, round_end - monotonic_seconds()))
                round_end = monotonic_seconds() + self.shortest_round_seconds
                checks[:] = self._ask()
        finally:
            self._away_since = None
            self._silent_at = monotonic_seconds()

    def _is_wanted(self, away_since: float) -> bool:
        """Return whether to go on with the checks of replicas that are away since that time."""
        return True

    def _ask(self) -> _Checks:
        return [asyncio.create_task(self._status()) for _ in range(_CHECKS_AT_ONCE)]

    async def _status(self) -> grpc.StatusCode:
        begun = monotonic_seconds()
        try:
            await self._check(b"", timeout=_CHECK_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code()
        # A check that outlasted a silence says how long that was, and not how slow the replica is.
        if self._away_since is None and begun > self._silent_at:
            self._times.record(monotonic_seconds() - begun)
        return grpc.StatusCode.OK


async def _clear_if_answered(suspects: list[WaitingCall], checks: _Checks) -> None:
    """Wait for the late checks, and suspect the calls no longer if all are answered: the
    replicas on their connections were only busy.
    """
    try:
        await asyncio.gather(*checks)
        if _answers(all, checks, _TOO_LATE):
            for call in suspects:
                call.is_suspect = False
    finally:
        await _cancel(checks)


async def _cancel(checks: _Checks) -> None:
    for check in checks:
        check.cancel()
    await asyncio.gather(*checks, return_exceptions=True)


async def _are_answered(
    enough: _Enough, checks: _Checks, seconds: float, no_answers: _Codes = _TOO_LATE
) -> bool:
    """Wait until enough checks are answered, all or any, but not longer than `seconds`."""
    begun, wait_seconds = monotonic_seconds(), seconds
    while not _answers(enough, checks, no_answers):
        pending = [check for check in checks if not check.done()]
        if not pending:
            return False
        await asyncio.wait(pending, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
        waited = monotonic_seconds() - begun
        if waited > seconds * _HELD_UP_RATIO:
            begun, waited = monotonic_seconds(), 0.0
        elif waited >= seconds:
            return _answers(enough, checks, no_answers)
        wait_seconds = seconds - waited
    return True


def _answers(enough: _Enough, checks: _Checks, no_answers: _Codes) -> bool:
    return enough(check.done() and check.result() not in no_answers for check in checks)
