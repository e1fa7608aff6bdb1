"""Spawns in progress: each goes on when its caller goes away."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog
from spawnmesh_core.errors import error_label
from spawnmesh_runtime.interceptors.deadline import context_without_deadline

from spawnmesh_session.domain.sessions import Session

Spawn = asyncio.Task[Session | None]


class SpawnsInProgress:
    """The spawns that this replica works on.

    A spawn is a task of its own, which the deadline of its caller does not end. At most
    `max_without_caller` go on when their callers go away, since each holds its files in memory.
    """

    def __init__(self, max_without_caller: int) -> None:
        self._max_without_caller = max_without_caller
        self._tasks: set[asyncio.Task[Any]] = set()
        self._without_caller: set[Spawn] = set()

    def start(self, spawn: Coroutine[Any, Any, Session | None]) -> Spawn:
        """Start the spawn without the deadline of the call being served."""
        task: Spawn = asyncio.create_task(spawn, context=context_without_deadline())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def undo_later(self, undo: Coroutine[Any, Any, None]) -> None:
        """Start the undo of a spawn whose caller is answered before it ends."""
        task = asyncio.create_task(undo, context=context_without_deadline())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for(self, spawn: Spawn) -> Session | None:
        """Return or raise what the spawn does.

        If the caller is cancelled, the spawn goes on; or it is cancelled too, if too many have no
        caller.
        """
        try:
            return await asyncio.shield(spawn)
        except asyncio.CancelledError:
            if not spawn.done():
                self._leave(spawn)
            raise

    async def finish(self, grace_seconds: float) -> None:
        """Let the spawns end within the grace time, then cut off the others, which undo
        themselves.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leave(self, spawn: Spawn) -> None:
        if len(self._without_caller) >= self._max_without_caller:
            spawn.cancel()
        self._without_caller.add(spawn)
        spawn.add_done_callback(self._end)

    def _end(self, spawn: Spawn) -> None:
        self._without_caller.discard(spawn)
        # The error is stored with the session; here it is only marked as retrieved.
        if not spawn.cancelled() and (error := spawn.exception()) is not None:
            structlog.get_logger().info("spawn_without_caller_failed", error=error_label(error))
