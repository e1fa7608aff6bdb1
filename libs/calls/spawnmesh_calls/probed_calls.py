"""Calls that leave a replica which has stopped answering."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar

import grpc.aio
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_calls.contracts import repeatable_paths
from spawnmesh_calls.silence_probe import PeerSilent, SilenceProbe, WaitingCall

# For a suspect stream, such as a model's answer.
_STREAM_TIMEOUT_SECONDS = 15.0

Q = TypeVar("Q")
R = TypeVar("R")


async def call_probed(
    probe: SilenceProbe,
    method: "grpc.aio.UnaryUnaryMultiCallable[Q, R]",
    request: Q,
    timeout: float,
    metadata: tuple[tuple[str, str], ...],
) -> R:
    """Make the call, and make it again elsewhere if its replica turns out to be silent.

    Raises PeerSilent.
    """
    path: str = method.path  # type: ignore[attr-defined]  # A `Method`.
    is_repeatable = path in repeatable_paths()
    left_after = 0.0 if is_repeatable else probe.call_timeout_seconds
    give_up = monotonic_seconds() + timeout
    while not probe.is_away:
        call = method(request, timeout=timeout, metadata=metadata)
        waiting = WaitingCall(call.cancel, left_after)
        probe.waits(waiting)
        try:
            answer: R = await call
            probe.answered(waiting)
            return answer
        except asyncio.CancelledError:
            if not waiting.is_why_cancelled():
                raise
            timeout = give_up - monotonic_seconds()
            if not is_repeatable or timeout <= 0:
                raise PeerSilent from None
        finally:
            probe.ended(waiting)
    raise PeerSilent


async def call_client_stream_probed(
    probe: SilenceProbe, method: Any, messages: AsyncIterator[Any], **options: Any
) -> Any:
    """Make the call. Raises PeerSilent."""
    if probe.is_away:
        raise PeerSilent
    waiting = WaitingCall(lambda: None, _STREAM_TIMEOUT_SECONDS)

    def start(sent: AsyncIterator[Any], **options: Any) -> Any:
        call = method(sent, **options)
        waiting.cancel = call.cancel
        return call

    probe.waits(waiting)
    try:
        answer = await call_client_stream(start, messages, **options)
        probe.answered(waiting)
        return answer
    except asyncio.CancelledError:
        if waiting.is_why_cancelled():
            raise PeerSilent from None
        raise
    finally:
        probe.ended(waiting)


class ProbedMessages:
    """The messages of a call. Iterating raises PeerSilent."""

    def __init__(
        self, probe: SilenceProbe, call: "grpc.aio.UnaryStreamCall[Any, Any]", quiet_seconds: float
    ) -> None:
        self._probe = probe
        self._messages = aiter(call)
        self._waiting = WaitingCall(call.cancel, _STREAM_TIMEOUT_SECONDS, quiet_seconds)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._probe.waits(self._waiting)
        try:
            message = await anext(self._messages)
            self._probe.answered(self._waiting)
            return message
        except asyncio.CancelledError:
            if self._waiting.is_why_cancelled():
                raise PeerSilent from None
            raise
        finally:
            self._probe.ended(self._waiting)  # The reader may take its time.
