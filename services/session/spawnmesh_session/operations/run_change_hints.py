"""The hints for runners that a run which they hold was interrupted or killed."""

import asyncio
from collections.abc import AsyncGenerator

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.listener import Listener, Subscription

from spawnmesh_session.store.runs import CHANGE_CHANNEL

# Before the token of a runner of the mesh expires.
_STREAM_SECONDS = 240.0
_ALIVE_SECONDS = 60.0
# Changes of this time are told together: a hint brings a heartbeat of every run of the runner, and
# one tenant may interrupt its own run again and again.
_GATHER_SECONDS = 0.2


class RunChangeHints:
    """Passes the notifications about runs on to the streams of their runners."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._open: set[Subscription] = set()
        self._is_closed = False

    def close(self) -> None:
        """End the streams, as this replica shuts down."""
        self._is_closed = True
        for changed in self._open:
            changed.wake()

    async def hints(self, payloads: list[str]) -> AsyncGenerator[None, None]:
        """Yield at once, at each change with one of the payloads, and now and then.

        End after some minutes.
        """
        end = monotonic_seconds() + _STREAM_SECONDS
        with self._listener.subscription(CHANGE_CHANNEL, *payloads) as changed:
            self._open.add(changed)
            try:
                while not self._is_closed and (left := end - monotonic_seconds()) > 0:
                    yield
                    await asyncio.sleep(_GATHER_SECONDS)
                    await changed.wait(min(left, _ALIVE_SECONDS))
            finally:
                self._open.discard(changed)
