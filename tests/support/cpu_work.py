"""Work for worker processes, which find it by its module."""

import asyncio
import os
import re
import signal

from spawnmesh_core.errors import invalid
from spawnmesh_runtime.cpu_workers import INLINE_BYTES

from tests.support.cpu_workers import cpu_workers

LARGE = INLINE_BYTES + 1


class _WantsTwo(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def pid() -> int:
    return os.getpid()


def length(content: bytes, *, times: int) -> int:
    return len(content) * times


def refuse(path: str) -> None:
    raise invalid(path, "is wrong")


def fail() -> None:
    raise _WantsTwo("a", "b")


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def compute() -> bool:
    """Hold the interpreter for longer than any test runs."""
    return re.fullmatch(r"(a+)+b", "a" * 100) is not None


async def _serve() -> None:
    async with cpu_workers() as workers:
        computing = await workers.run("computing", LARGE, pid)
        held = asyncio.create_task(workers.run("computing", LARGE, compute))
        await asyncio.sleep(0)  # It takes the worker.
        idle = await workers.run("idle", LARGE, pid)
        print(computing, idle, flush=True)
        await held


if __name__ == "__main__":
    asyncio.run(_serve())
