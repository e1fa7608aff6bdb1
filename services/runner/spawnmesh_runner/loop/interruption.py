"""The interrupts of a run, as its heartbeats report them, and the work that they cut short."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from spawnmesh.session.v1 import run_service_pb2 as pb

T = TypeVar("T")


class RunInterrupted(Exception):
    """A caller asked the run to end. What it said is in the transcript."""


class TurnInterrupted(Exception):
    """The turn is over: the run must end, or an urgent message waits in its inbox."""


class Interruption:
    """The part of a run that must stop: nothing, the turn, or the run."""

    def __init__(self) -> None:
        self._turn = asyncio.Event()
        self._run = asyncio.Event()
        self._read_count = 0

    @property
    def is_turn_over(self) -> bool:
        return self._turn.is_set()

    @property
    def read_count(self) -> int:
        """The number of times that the inbox was read until it was empty."""
        return self._read_count

    def report(self, interrupt: "pb.Interrupt.ValueType", read_count: int) -> None:
        """Take over what a heartbeat says that was sent when the inbox had been read so often.

        An urgent message that was read meanwhile stops nothing.
        """
        if interrupt == pb.INTERRUPT_RUN:
            self._run.set()
            self._turn.set()
        elif interrupt == pb.INTERRUPT_TURN and read_count == self._read_count:
            self._turn.set()

    def inbox_was_read(self) -> None:
        """Note that no urgent message waits any more."""
        self._read_count += 1
        if not self._run.is_set():
            self._turn.clear()

    def raise_if_run_must_end(self) -> None:
        """Raise RunInterrupted if a caller asked the run to end."""
        if self._run.is_set():
            raise RunInterrupted

    async def cut_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. If the turn is interrupted before, cancel the work.

        Raises TurnInterrupted then, after the work has ended.
        """
        return await _cut(work, self._turn, TurnInterrupted)

    async def cut_run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. If the run must end before, cancel the work.

        Raises RunInterrupted then, after the work has ended.
        """
        return await _cut(work, self._run, RunInterrupted)


async def _cut(work: Coroutine[Any, Any, T], stop: asyncio.Event, error: type[Exception]) -> T:
    if stop.is_set():
        work.close()
        raise error
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
        if working.cancelled():
            raise error
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():  # This task was cancelled.
            working.cancel()
            await asyncio.wait((working,))
