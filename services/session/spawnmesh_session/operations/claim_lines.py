"""The lines in which claims wait for runs: the first in a line reads the queue, the rest wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from spawnmesh_session.operations.claim_limits import ClaimingHarness
from spawnmesh_session.store.run_queue import ServedRuns


@dataclass(frozen=True, slots=True)
class _LineKey:
    """Claims of the same runs by the same caller; all runners of the mesh are one caller."""

    runtimes: frozenset[str]
    tenants: frozenset[str]
    agents: frozenset[str]
    token_id: str


class PlaceInLine:
    """The first place of a line."""

    def __init__(self, line: asyncio.Lock) -> None:
        self._line = line
        self.has_left = False

    def leave(self) -> None:
        """Let the next one be the first."""
        if not self.has_left:
            self.has_left = True
            self._line.release()


class ClaimLines:
    """The lines of this replica.

    If each claim that waits looked whenever a run is queued, a hundred runners would make a hundred
    takes for one run. The first in line looks instead, and the next one when it has taken runs or
    gives up.
    """

    def __init__(self) -> None:
        self._lines: WeakValueDictionary[_LineKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def first_in_line(
        self, served: ServedRuns, harness: ClaimingHarness | None, until: float
    ) -> AsyncIterator[PlaceInLine | None]:
        """Be the first in line for the block, or until the place is left.

        Yield None if that takes until this time of the event loop's clock.
        """
        key = _LineKey(
            frozenset(served.runtimes),
            frozenset(served.tenants),
            frozenset(served.agents),
            "" if harness is None else harness.token_id,
        )
        line = self._lines.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await line.acquire()
        except TimeoutError:
            yield None
            return
        place = PlaceInLine(line)
        try:
            yield place
        finally:
            place.leave()
