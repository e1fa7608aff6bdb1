"""A fork of the server is the process that the devstack would start."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.forks import ForkServer, open_fork_server
from spawnmesh_devstack.processes import Command, Execute, execute, start_process
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.forked_process import start_forked
from tests.support.waiting import eventually

SHOWS_ITSELF = """
import ctypes, os, sys
signal_of_parent = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal_of_parent), 0, 0, 0)
print(__name__, sys.argv[1:], sys.path[0], sorted(os.environ), os.getcwd(), sys.stdin.read())
print(os.getpid() == os.getsid(0), signal_of_parent.value, len(os.listdir("/proc/self/fd")), file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture(params=["fork", "execute"])
def start(request: pytest.FixtureRequest, fork_server: ForkServer) -> Execute:
    return fork_server.execute if request.param == "fork" else execute


async def test_process_has_what_its_command_names(tmp_path: Path, watchdog: Watchdog, start: Execute) -> None:
    (tmp_path / "shown.py").write_text(SHOWS_ITSELF)
    argv, env = (sys.executable, "-m", "shown", "a", "b"), {"PATH": "/bin", "ONE": "1", "LC_CTYPE": "C.UTF-8"}
    command = Command(
        "x", argv, tmp_path / "log", env, working_directory=tmp_path, orphan_signal=signal.SIGINT
    )
    process = start_process(command, watchdog, start)
    assert await process.wait() == 7
    errors, output = sorted((tmp_path / "log").read_text().splitlines())
    assert errors == f"True {signal.SIGINT.value} 4"
    assert output == f"__main__ ['a', 'b'] {tmp_path} ['LC_CTYPE', 'ONE', 'PATH'] {tmp_path} "
    await process.stop()


async def test_process_can_be_paused_stopped_and_killed(
    tmp_path: Path, watchdog: Watchdog, start: Execute
) -> None:
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    command = Command("x", (sys.executable, "-m", "waits"), tmp_path / "log", {}, working_directory=tmp_path)
    process = start_process(command, watchdog, start)
    await eventually(process.tail)
    process.pause()
    await eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    process.resume()
    await process.stop()
    assert (process.returncode, psutil.pid_exists(process.pid)) == (-signal.SIGTERM, False)
    other = start_process(command, watchdog, start)
    await other.kill()
    assert other.returncode == -signal.SIGKILL


async def test_fork_has_the_name_of_its_command(
    tmp_path: Path, watchdog: Watchdog, fork_server: ForkServer
) -> None:
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    argv = (sys.executable, "-m", "waits")
    command = Command("session-worker", argv, tmp_path / "log", {}, working_directory=tmp_path)
    process = start_process(command, watchdog, fork_server.execute)
    await eventually(process.tail)
    assert Path(f"/proc/{process.pid}/comm").read_text() == "session-worker\n"
    await process.stop()


async def test_a_server_that_has_ended_is_an_error_of_the_mesh(tmp_path: Path, watchdog: Watchdog) -> None:
    command = Command("x", (sys.executable, "-m", "this"), tmp_path / "log", {}, working_directory=tmp_path)
    others = set(psutil.Process().children())
    with open_fork_server() as server:
        [parent] = set(psutil.Process().children()) - others
        first = start_process(command, watchdog, server.execute)
        assert await first.wait() == 0
        parent.kill()
        parent.wait()
        with pytest.raises(StackError, match="the process that starts the others has ended"):
            start_process(command, watchdog, server.execute)


async def test_forked_service_prints_its_refusal_and_ends_with_one(fork_server: ForkServer) -> None:
    process = await start_forked(fork_server, ["-m", "spawnmesh_hook", "nothing"], dict(os.environ))
    printed, _ = await process.communicate()
    assert printed.decode().startswith("usage: python -m spawnmesh_hook serve|worker|")
    assert process.returncode == 1
