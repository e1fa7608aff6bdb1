"""How long to go on asking a service that does not answer any more."""

import asyncio
from collections.abc import Awaitable, Callable

from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status

_PAUSE_SECONDS = 1.0
_CONNECTED_SECONDS = 10.0  # Nobody's absence takes this long to show, so a call that lasted longer had been answered.
_TRANSIENT = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)


class Patience:
    """Outlasts restarts of a service: `calling` before each try, `heard` after each answer, `after` when one has failed."""

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

    def calling(self) -> None:
        """A try begins."""
        self._called = self._monotonic()

    def heard(self) -> None:
        """The service has answered."""
        self._silent_since = None

    async def after(self, error: MeshError) -> None:
        """Returns when it is time for the next try: after as long as the refusal asks for, else a second.

        Raises the error where trying again does not help, and where the service would have been silent for longer than `seconds`.
        """
        now = self._monotonic()
        if error.reason is Reason.TOKEN_EXPIRED and now - self._called > _CONNECTED_SECONDS:
            return  # It was good when the call began: whoever makes tokens has a new one.
        if self._silent_since is None or now - self._called > _CONNECTED_SECONDS:
            self._silent_since = now
        pause = error.retry_after_seconds or _PAUSE_SECONDS
        if error.status not in _TRANSIENT or now + pause - self._silent_since > self._seconds:
            raise error
        await self._sleep(pause)
