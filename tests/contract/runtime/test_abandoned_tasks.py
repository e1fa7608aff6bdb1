"""A process ends although its main coroutine leaves tasks on the loop."""

import asyncio
import json
import sys
from typing import Any

import pytest

_BOUND_SECONDS = 15.0  # What a pod has behind its grace.

LEAVE = """
import asyncio, os, signal, sys
from spawnmesh_runtime import shutdown
from spawnmesh_runtime.logs import write_json_logs
from spawnmesh_runtime.process import run_process

signal.signal(signal.SIGINT, signal.default_int_handler)  # Who runs the tests in the background may have it ignored.
cancelled_count = 0

async def deaf(swallowed, times):
    global cancelled_count
    while cancelled_count < times:
        try:
            await asyncio.sleep(3600)
        except swallowed:
            cancelled_count += 1

async def slow():
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.5)
        print('{"event": "cleaned up"}')

async def exits():
    try:
        await asyncio.sleep(3600)
    finally:
        sys.exit(9)

async def returned():
    return 7

async def failed():
    raise OSError("gone")

async def exited():
    sys.exit("it cannot be had")

async def exited_beside():
    async with asyncio.TaskGroup() as group:
        group.create_task(exited())

async def told():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)

async def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(3600)

async def main(outcome, left):
    write_json_logs("test", "info")
    tasks = [asyncio.create_task(one, name=one.__name__) for one in left]
    await asyncio.sleep(0)
    return await outcome
"""
AT_ONCE = "shutdown._CLOSE_SECONDS, shutdown._RETRY_SECONDS = 0.2, 0.05"
FOREVER = "deaf(asyncio.CancelledError, float('inf'))"


async def ends(*lines: str) -> tuple[int | None, list[Any], str]:
    """Return the exit code, the events and the errors of a process that runs these lines."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "\n".join((LEAVE, *lines)),
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_BOUND_SECONDS):
            told, errors = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    return running.returncode, [json.loads(line) for line in told.splitlines()], errors.decode()


@pytest.mark.parametrize("swallowed", ["asyncio.CancelledError", "BaseException"])
async def test_process_abandons_a_task_that_ignores_cancellations(swallowed: str) -> None:
    code, events, errors = await ends(
        f"sys.exit(run_process(main(returned(), [deaf({swallowed}, float('inf'))])))"
    )
    assert (code, errors) == (7, "")
    assert [(event["event"], event["level"], event["service"]) for event in events] == [
        ("tasks_abandoned", "warning", "test")
    ]
    assert events[0]["waiting"] == ["deaf: deaf > sleep"]


async def test_a_swallowed_cancellation_is_repeated() -> None:
    code, events, errors = await ends(
        "run_process(main(returned(), [deaf(asyncio.CancelledError, 3)]))", "sys.exit(cancelled_count)"
    )
    assert (code, events, errors) == (3, [], "")


async def test_a_remaining_task_has_time_to_clean_up() -> None:
    code, events, errors = await ends("sys.exit(run_process(main(returned(), [slow()])))")
    assert (code, events, errors) == (7, [{"event": "cleaned up"}], "")


@pytest.mark.parametrize(
    ("outcome", "code", "last"),
    [
        ("failed()", 1, ["OSError: gone"]),
        ("exited()", 1, ["it cannot be had"]),
        ("exited_beside()", 1, ["it cannot be had"]),
        ("told()", 0, []),
        ("interrupted()", -2, ["KeyboardInterrupt"]),
    ],
)
async def test_the_outcome_of_main_stays_whatever_tasks_it_leaves(
    outcome: str, code: int, last: list[str]
) -> None:
    ended, events, errors = await ends(AT_ONCE, f"run_process(main({outcome}, [{FOREVER}]))")
    assert (ended, errors.splitlines()[-1:]) == (code, last)
    assert [event["event"] for event in events] == ["tasks_abandoned"]


async def test_a_system_exit_of_a_remaining_task_is_only_logged() -> None:
    code, events, errors = await ends("sys.exit(run_process(main(returned(), [exits(), slow()])))")
    assert (code, errors) == (7, "")
    cleaned_up, complaint = (event["event"] for event in events)
    assert cleaned_up == "cleaned up"
    assert complaint.startswith("Task exception was never retrieved")
    assert "SystemExit(9)" in complaint
