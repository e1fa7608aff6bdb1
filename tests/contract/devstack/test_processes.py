"""Children end with their parent, whatever ends the parent."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile

import psutil
import pytest
from spawnmesh_devstack.failures import StartFailed
from spawnmesh_devstack.family import runs
from spawnmesh_devstack.processes import Command, start_process, until_ready
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.waiting import eventually

STUBBORN = (
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
WITH_CHILD = (
    "import subprocess,sys,time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print('child', c.pid, flush=True); time.sleep(600)"
)


@pytest.fixture(scope="module")
def watchdog():
    with Watchdog() as dog:
        yield dog


def run(code, tmp_path, watchdog, **more):
    return start_process(Command("child", (sys.executable, "-c", code), tmp_path / "log", **more), watchdog)


async def test_stop_asks_first_and_reaps(tmp_path, watchdog):
    process = run("import time; print('up', flush=True); time.sleep(600)", tmp_path, watchdog)
    await eventually(process.tail)

    await process.stop(5)

    assert process.returncode == -signal.SIGTERM
    assert not psutil.pid_exists(process.pid)
    await process.stop(5)  # repeatable


async def test_stop_kills_what_ignores_the_request_after_the_grace(tmp_path, watchdog):
    process = run(STUBBORN, tmp_path, watchdog)
    await eventually(process.tail)

    await process.stop(0.05)

    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_grandchildren_end_with_the_child(tmp_path, watchdog, ending):
    process = run(WITH_CHILD, tmp_path, watchdog)
    grandchild = psutil.Process(int((await eventually(process.tail)).split()[1]))

    await (process.stop(1) if ending == "stop" else process.kill())

    assert not runs(grandchild)


async def test_a_grandchild_whose_parent_crashed_is_ended_by_stop(tmp_path, watchdog):
    process = run(WITH_CHILD, tmp_path, watchdog)
    grandchild = psutil.Process(int((await eventually(process.tail)).split()[1]))
    psutil.Process(process.pid).kill()
    await process.wait()
    assert runs(grandchild)

    await process.stop()

    assert not runs(grandchild)


async def test_a_paused_process_makes_no_progress_until_resumed_and_can_be_stopped(tmp_path, watchdog):
    process = run("import time\nwhile True: print('.', flush=True); time.sleep(0.005)", tmp_path, watchdog)
    await eventually(process.tail)

    process.pause()
    await eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    written = (tmp_path / "log").stat().st_size
    process.resume()
    await eventually(lambda: (tmp_path / "log").stat().st_size > written)
    process.pause()
    await process.stop(5)

    assert process.returncode == -signal.SIGTERM


async def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_line(tmp_path, watchdog):
    (tmp_path / "log").write_text("of a former run\n")
    process = run("import sys; print('first', flush=True); sys.exit('no disk')", tmp_path, watchdog)

    with pytest.raises(StartFailed, match=r"child did not start: ended with status 1 \(no disk\)") as failed:
        await until_ready(process, lambda: asyncio.sleep(0, result=False), 60)

    assert sorted(failed.value.log_tail.splitlines()) == ["first", "no disk"]


async def test_a_silent_child_is_not_waited_for_forever(tmp_path, watchdog):
    process = run("import time; time.sleep(600)", tmp_path, watchdog)

    with pytest.raises(StartFailed, match=r"not ready after 0\.05 s"):
        await until_ready(process, lambda: asyncio.sleep(0, result=False), 0.05)
    await process.kill()


async def test_a_missing_program_is_named(tmp_path, watchdog):
    command = Command("ghost", ("/nowhere/ghost",), tmp_path / "log")

    with pytest.raises(StartFailed, match="cannot run ghost: No such file"):
        await until_ready(start_process(command, watchdog), lambda: asyncio.sleep(0, result=False), 60)


def test_leaving_the_watchdog_ends_what_was_forgotten(tmp_path):
    with Watchdog() as dog:
        process = run("import time; time.sleep(600)", tmp_path, dog)

    assert process.returncode == -signal.SIGTERM


PARENT = """
import asyncio, json, sys, time
from pathlib import Path
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.processes import Command, start_process
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.watchdog import Watchdog

async def main(directory, whole):
    with Watchdog() as dog:
        pids = {"watchdog": dog.pid}
        for name, code in json.loads(sys.argv[3]).items():
            child = start_process(Command(name, (sys.executable, "-c", code), directory / name), dog)
            while not child.tail():
                await asyncio.sleep(0.01)
            pids[name] = child.pid
            if child.tail().startswith("child"):
                pids["grandchild"] = int(child.tail().split()[1])
        if whole:
            postgres = Postgres(directory / "postgres", directory / "postgres.log", dog, lambda line: None)
            s3 = S3Server(directory / "s3", directory / "s3.log", dog, lambda line: None)
            await asyncio.gather(postgres.start(), s3.start())
            pids["postgres"] = postgres.process.pid
            pids |= {process.name: process.pid for process in s3.processes}
        print(json.dumps(pids), flush=True)
        await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "whole"))
"""


def start_parent(tmp_path, extent, **children):
    argv = [sys.executable, "-c", PARENT, str(tmp_path), extent, json.dumps(children)]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    return parent, {name: psutil.Process(pid) for name, pid in json.loads(parent.stdout.readline()).items()}


@pytest.fixture
def open_directory():
    """A directory outside of pytest's: under root, another pytest that starts closes those to the
    account of PostgreSQL.
    """
    with tempfile.TemporaryDirectory(prefix="spawnmesh-test-") as name:
        yield name


async def test_kill_9_of_the_parent_leaves_no_postgres_no_weed_and_no_child_running(open_directory):
    parent, left = start_parent(open_directory, "whole", stubborn=STUBBORN, family=WITH_CHILD)
    left |= {f"backend {child.pid}": child for child in left["postgres"].children(recursive=True)}
    assert {"watchdog", "stubborn", "family", "grandchild", "postgres", "s3-master", "s3"} < set(left)
    assert all(runs(process) for process in left.values())

    with parent:
        parent.kill()

    try:
        await eventually(lambda: not any(runs(process) for process in left.values()))
    finally:
        for process in left.values():
            if runs(process):
                process.kill()


async def test_a_child_ends_with_its_parent_even_when_the_watchdog_was_killed_before(tmp_path):
    parent, left = start_parent(
        tmp_path, "small", plain="import time; print('up', flush=True); time.sleep(600)"
    )
    left["watchdog"].kill()
    await eventually(lambda: not runs(left["watchdog"]))

    with parent:
        parent.kill()

    try:
        await eventually(lambda: not runs(left["plain"]))
    finally:
        if runs(left["plain"]):
            left["plain"].kill()
