"""The interpreter does not resume a task that is kept alive; it resumes one that is not."""

import subprocess
import sys

PROGRAM = """
import asyncio, os
from spawnmesh_runtime.workarounds.abandoned_tasks import keep_alive

async def waits():
    try:
        await asyncio.Event().wait()
    except BaseException as error:
        os.write(1, type(error).__name__.encode())
        raise

async def main():
    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    return task

loop = asyncio.new_event_loop()
task = loop.run_until_complete(main())
if {kept}:
    keep_alive(task)
loop.close()
"""


def resumed_with(*, kept: bool) -> str:
    """Return the exception that the task of an ending interpreter receives."""
    program = PROGRAM.format(kept=kept)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    return ended.stdout.decode()


def test_the_workaround_is_still_needed() -> None:
    assert resumed_with(kept=False) == "GeneratorExit", "remove workarounds/abandoned_tasks.py"


def test_a_task_that_is_kept_alive_is_not_resumed() -> None:
    assert resumed_with(kept=True) == ""
