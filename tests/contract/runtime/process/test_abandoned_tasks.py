"""A process ends although its main coroutine leaves tasks on the loop."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_BOUND_SECONDS = 60

LEAVE = """
import asyncio, os, signal, sys
from spawnmesh_runtime import shutdown
from spawnmesh_runtime.logs import write_json_logs
from spawnmesh_runtime.process import run_process

# A shell that starts the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


# The imports are most of the time of a process: each program runs in a fork of one that has them.
FORK = """
import json
for line in sys.stdin:
    program = json.loads(line)
    pid = os.fork()
    if not pid:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
        signal.alarm(BOUND_SECONDS)
        exec(program)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

Ends = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    """Return the exit code, the events and the errors of a process that runs these lines."""
    folder = tmp_path_factory.mktemp("ended")
    with subprocess.Popen(
        [sys.executable, "-c", f"{LEAVE}\nBOUND_SECONDS = {_BOUND_SECONDS}\n{FORK}"],
        cwd=folder,
        env={"PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forking:
        requests, exit_codes = forking.stdin, forking.stdout
        assert requests is not None
        assert exit_codes is not None

        def run(*lines: str) -> tuple[int, list[Any], str]:
            print(json.dumps("\n".join(lines)), file=requests, flush=True)
            code = int(exit_codes.readline())
            told = (folder / "stdout").read_text()
            return code, [json.loads(line) for line in told.splitlines()], (folder / "stderr").read_text()

        yield run
        requests.close()


@pytest.mark.parametrize(
    ("swallowed", "set_up"), [("asyncio.CancelledError", ""), ("BaseException", AT_ONCE)]
)
def test_process_abandons_a_task_that_ignores_cancellations(ends: Ends, swallowed: str, set_up: str) -> None:
    run = f"sys.exit(run_process(main(returned(), [deaf({swallowed}, float('inf'))])))"
    code, events, errors = ends(set_up, run)
    assert (code, errors) == (7, "")
    assert [(event["event"], event["level"], event["service"]) for event in events] == [
        ("tasks_abandoned", "warning", "test")
    ]
    assert events[0]["waiting"] == ["deaf: deaf > sleep"]


def test_a_swallowed_cancellation_is_repeated(ends: Ends) -> None:
    code, events, errors = ends(
        "run_process(main(returned(), [deaf(asyncio.CancelledError, 3)]))", "sys.exit(cancelled_count)"
    )
    assert (code, events, errors) == (3, [], "")


def test_a_remaining_task_has_time_to_clean_up(ends: Ends) -> None:
    code, events, errors = ends("sys.exit(run_process(main(returned(), [slow()])))")
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
def test_the_outcome_of_main_stays_whatever_tasks_it_leaves(
    ends: Ends, outcome: str, code: int, last: list[str]
) -> None:
    ended, events, errors = ends(AT_ONCE, f"run_process(main({outcome}, [{FOREVER}]))")
    assert (ended, errors.splitlines()[-1:]) == (code, last)
    assert [event["event"] for event in events] == ["tasks_abandoned"]


def test_a_system_exit_of_a_remaining_task_is_only_logged(ends: Ends) -> None:
    code, events, errors = ends("sys.exit(run_process(main(returned(), [exits(), slow()])))")
    assert (code, errors) == (7, "")
    cleaned_up, complaint = (event["event"] for event in events)
    assert cleaned_up == "cleaned up"
    assert complaint.startswith("Task exception was never retrieved")
    assert "SystemExit(9)" in complaint
