"""asyncio keeps the pipe of a process that has ended while another process holds it."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process

from spawnmesh_runtime.workarounds.subprocess_pipes import close_pipes


async def ended_with_a_child() -> tuple[Process, int]:
    """Return a process that has ended, and the id of its child, which holds the output pipe."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 60 & echo $!", stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    async with asyncio.timeout(60):
        while process.returncode is None:
            await asyncio.sleep(0.01)
    return process, child


async def has_open_output(process: Process) -> bool:
    """Return whether the loop still reads the output of the process."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(0.2):
            await process.stdout.read()
    except TimeoutError:
        return True
    return False


async def test_the_workaround_is_still_needed() -> None:
    process, child = await ended_with_a_child()
    try:
        assert await has_open_output(process), "remove workarounds/subprocess_pipes.py"
    finally:
        os.kill(child, signal.SIGKILL)
        close_pipes(process)


async def test_the_pipes_can_be_closed() -> None:
    process, child = await ended_with_a_child()
    try:
        close_pipes(process)
        assert not await has_open_output(process)
    finally:
        os.kill(child, signal.SIGKILL)
