"""Retries of calls to a service that stopped answering, or that limits the tenant."""

import asyncio
from collections.abc import Awaitable, Callable

from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

_PAUSE_SECONDS = 1.0
_CONNECTED_SECONDS = (
    10.0  # An unavailable service fails sooner, so a call that lasted longer had been answered.
)
_TRANSIENT = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
_LIMITED = (Reason.RATE_LIMITED, Reason.POOL_EXHAUSTED)


class RetryPolicy:
    """Retry over a restart of a service.

    Call `begin_attempt` before each attempt, `record_answer` after each answer, and
    `wait_before_next` after a failure.
    """

    def __init__(
        self,
        seconds: float,
        *,
        monotonic: Monotonic = monotonic_seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._called = monotonic()
        self._silent_since: float | None = None

    def begin_attempt(self) -> None:
        """Record the start of an attempt."""
        self._called = self._monotonic()

    def record_answer(self) -> None:
        """Record an answer of the service."""
        self._silent_since = None

    async def wait_before_next(self, error: MeshError) -> None:
        """Wait until the next attempt: as long as the refusal asks for, or else a second.

        Raises the error if a retry does not help, or if the service would have been silent, or have
        refused the calls as too many, for longer than `seconds`.
        """
        now = self._monotonic()
        if error.reason is Reason.TOKEN_EXPIRED and now - self._called > _CONNECTED_SECONDS:
            return  # The token was valid when the call began; the next attempt gets a new one.
        if self._silent_since is None or now - self._called > _CONNECTED_SECONDS:
            self._silent_since = now
        pause = error.retry_after_seconds or _PAUSE_SECONDS
        is_passing = error.status in _TRANSIENT or error.reason in _LIMITED
        if not is_passing or now + pause - self._silent_since > self._seconds:
            raise error
        await self._sleep(pause)
