"""Reports of a process that ends and is started again."""

import asyncio
from pathlib import Path
from typing import Any

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.restarts import _keep_up, _Part

from tests.support.waiting import eventually


class Process:
    """A process that ends when tests say so."""

    name = "s3"
    log_file = Path("/data/logs/s3.log")

    def __init__(self) -> None:
        self.returncode: int | None = None


async def test_an_end_a_failed_start_and_the_return_are_a_line_each() -> None:
    processes, lines, failures = [Process()], list[str](), [StackError("the port is in use\nmore")]

    async def restart() -> None:
        if failures:
            raise failures.pop()
        processes[0] = Process()

    part: Any = _Part(lambda: processes, restart)  # type: ignore[arg-type, return-value]
    keeping = asyncio.create_task(_keep_up(part, lines.append))
    processes[0].returncode = -9
    await eventually(lambda: len(lines) == 3)
    processes[0].returncode = 1
    await eventually(lambda: len(lines) == 4)
    keeping.cancel()
    assert lines == [
        "s3 was killed by SIGKILL; it is started again now; its log is /data/logs/s3.log",
        "s3 does not come back: the port is in use; next attempt in 1 s",
        "s3 is back",
        "s3 ended with status 1; it is started again in 2 s; its log is /data/logs/s3.log",
    ]
