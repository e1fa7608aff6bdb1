"""The memory of the processes during the calls: samples, and what is wrong with them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import psutil

_EVERY_SECONDS = 0.5
_MIB = 2**20
_PEAK_MIB = 256
"""The most by which a process may be larger at any time than before the calls."""

_TREND_MIB = 64
"""The most by which a process may be larger in the last quarter of a long run than in the second."""

_SAMPLES_OF_A_LONG_RUN = 240


@dataclass
class Memory:
    """The resident bytes of each process, one sample after the other."""

    samples: dict[str, list[int]] = field(default_factory=dict)

    def take(self, pids: Mapping[str, int]) -> None:
        """Take a sample of each process that is there."""
        for name, pid in pids.items():
            try:
                resident = int(psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:  # `still_well` reports it.
                continue
            self.samples.setdefault(name, []).append(resident)

    def problems(self) -> list[str]:
        """Return the processes that grew by too much."""
        found = []
        for name, taken in self.samples.items():
            peak = (max(taken) - taken[0]) / _MIB
            if peak > _PEAK_MIB:
                found.append(f"{name} grew by {peak:.0f} MiB")
            quarter = len(taken) // 4
            if len(taken) >= _SAMPLES_OF_A_LONG_RUN:
                trend = (median(taken[-quarter:]) - median(taken[quarter : 2 * quarter])) / _MIB
                if trend > _TREND_MIB:
                    found.append(f"{name} goes on growing: by {trend:.0f} MiB in the second half")
        return found

    def summary(self) -> str:
        """Return the first, the largest and the last sample of each process, in MiB."""
        return ", ".join(
            f"{name} {taken[0] // _MIB}-{max(taken) // _MIB}-{taken[-1] // _MIB}"
            for name, taken in sorted(self.samples.items())
        )


@asynccontextmanager
async def sampled_memory(pids: Callable[[], Mapping[str, int]]) -> AsyncIterator[Memory]:
    """Sample the processes during the block."""
    memory = Memory()
    memory.take(pids())

    async def go_on() -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            memory.take(pids())

    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(go_on())
        try:
            yield memory
        finally:
            memory.take(pids())
            sampling.cancel()
