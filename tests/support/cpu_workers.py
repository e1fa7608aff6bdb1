"""Worker processes for tests that open a part of a service by itself."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import psutil
from spawnmesh_runtime.cpu_workers import CpuWorkers, open_cpu_workers
from spawnmesh_runtime.metrics import NO_METRICS
from spawnmesh_runtime.settings import CpuWorkerSettings


@asynccontextmanager
async def cpu_workers(*modules: str, count: int = 2, seconds: float = 60.0) -> AsyncIterator[CpuWorkers]:
    """Run worker processes that have the modules for the block. They start when they are needed."""
    settings = CpuWorkerSettings(cpu_worker_count=count, cpu_work_seconds=seconds)
    async with open_cpu_workers(settings, NO_METRICS.meter, modules=[*modules]) as workers:
        yield workers


def worker_pids() -> set[int]:
    """Return the ids of the worker processes of this process."""
    return {child.pid or 0 for child in multiprocessing.active_children() if child.name == "cpu-worker"}


def worker_seconds() -> float:
    """Return the processor time of the worker processes."""
    times = [psutil.Process(pid).cpu_times() for pid in worker_pids()]
    return float(sum(time.user + time.system for time in times))


async def until_ended(pids: Iterable[int]) -> None:
    """Wait until no process has one of the ids. A zombie has ended."""
    left = set(pids)
    async with asyncio.timeout(60):
        while left := {pid for pid in left if _runs(pid)}:
            await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
