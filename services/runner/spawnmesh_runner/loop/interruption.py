"""The interrupts of a run, as its heartbeats report them, and the work that they cut short."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.cancellation import cut_short

from spawnmesh_runner.domain.tools import TurnInterrupted

T = TypeVar("T")


class RunInterrupted(Exception):
    """A caller asked the run to end. What it said is in the transcript."""


class Interruption:
    """The part of a run that must stop: nothing, the turn, or the run."""

    def __init__(self) -> None:
        self._turn = asyncio.Event()
        self._run = asyncio.Event()
        self._read_count = 0
        self._report_count = 0

    @property
    def is_turn_over(self) -> bool:
        return self._turn.is_set()

    @property
    def read_count(self) -> int:
        """The number of times that the inbox was read until it was empty."""
        return self._read_count

    @property
    def report_count(self) -> int:
        """The number of urgent messages that heartbeats have reported."""
        return self._report_count

    def report(self, interrupt: "pb.Interrupt.ValueType", read_count: int) -> bool:
        """Take over what a heartbeat says that was sent when the inbox had been read so often.

        Return False if the inbox was read meanwhile: the urgent message may have been read, or it
        is a new one. Ask again.
        """
        if interrupt == pb.INTERRUPT_RUN:
            self._run.set()
            self._turn.set()
        elif interrupt == pb.INTERRUPT_TURN:
            if read_count != self._read_count:
                return False
            self._report_count += 1
            self._turn.set()
        return True

    def inbox_was_read(self, report_count: int) -> None:
        """Note that the inbox is empty.

        So many urgent messages had been reported when it was asked. A later report may be about a
        message that came behind the answer.
        """
        self._read_count += 1
        if not self._run.is_set() and report_count == self._report_count:
            self._turn.clear()

    def raise_if_run_must_end(self) -> None:
        """Raise RunInterrupted if a caller asked the run to end."""
        if self._run.is_set():
            raise RunInterrupted

    async def cut_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. If the turn is interrupted before, cancel the work.

        Raises TurnInterrupted then, after the work has ended.
        """
        return await cut_short(work, self._turn, TurnInterrupted)

    async def cut_run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. If the run must end before, cancel the work.

        Raises RunInterrupted then, after the work has ended.
        """
        return await cut_short(work, self._run, RunInterrupted)
