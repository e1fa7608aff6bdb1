"""The backends of the sandbox, as the runner's user and as another one, on this machine's kernel."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawnmesh_runner.clients.sandbox.command_line import Confinement, ProcessLimits, namespaces
from spawnmesh_runner.clients.sandbox.sandbox import find_sandbox

from tests.support.runner.sandboxes import (
    ACCEPT_NO_SANDBOX,
    BACKENDS,
    LIMITS,
    Starter,
    bare,
    leave_out,
    processes_in,
    require_sandbox,
    starter,
)
from tests.support.waiting import eventually

SHELL = "/bin/sh"
LOWEST = 19
SHOW = """
id -u
grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\\t' | tr '\\n' ' '; echo
ls /proc | grep -cE '^[0-9]+$'
cat /proc/net/dev | grep -c ':'
echo kept > mine && cat mine
for place in /usr /etc / /dev; do touch $place/planted 2>/dev/null && echo planted; done
df -k /tmp /dev/shm | tail -n +2 | tr -s ' ' | cut -d' ' -f2 | tr '\\n' ' '; echo
cat SECRET 2>/dev/null || echo hidden
ulimit -n; ulimit -u 2>/dev/null || ulimit -p
env | cut -d= -f1 | grep -vE '^(PWD|OLDPWD|SHLVL|LC_CTYPE|_)$' | sort | tr '\\n' ' '
"""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, the user that starts it, and a folder with a workspace."""

    starter: Starter
    folder: Path

    def started(self, script: str) -> subprocess.Popen[str]:
        """Start a shell with the script in the sandbox."""
        confinement = Confinement(self.folder / "workspace", paths=(), network=False, limits=LIMITS)
        return subprocess.Popen(
            self.starter.command_line([SHELL, "-c", script], confinement),
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Give each backend that this machine has."""
    found = starter(request.param)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "workspace").mkdir(mode=0o700)
        (Path(folder) / "secret").write_text("the secret")
        yield Backend(found, Path(folder))


def test_a_program_sees_its_workspace_and_the_system_alone(backend: Backend) -> None:
    process = backend.started(SHOW.replace("SECRET", str(backend.folder / "secret")))
    said, problem = process.communicate()
    user, rights, processes, networks, kept, sizes, hidden, files, count, names = said.splitlines()
    assert int(user) == (backend.starter.uid or 65_533), problem
    assert rights == "CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 "
    assert int(processes) < 8
    assert sizes.split() == ["65536", "65536"], "64 MiB each"
    assert (networks, kept, hidden) == ("1", "kept", "hidden")
    assert (int(files), int(count)) == (LIMITS.open_files, LIMITS.processes)
    assert names.split() == ["PATH"]
    assert (backend.folder / "workspace" / "mine").stat().st_uid == backend.starter.uid
    assert process.returncode == 0


def test_the_exit_code_and_the_errors_are_those_of_the_program(backend: Backend) -> None:
    process = backend.started("echo 'no license' >&2; exit 7")
    assert process.communicate() == ("", "no license\n")
    assert process.returncode == 7
    for number in (signal.SIGSEGV, signal.SIGTERM):
        process = backend.started(f"kill -{number.value} $$")
        process.communicate()
        assert process.returncode == 128 + number


def test_the_program_alone_holds_the_streams(tmp_path: Path) -> None:
    require_sandbox()
    (tmp_path / "workspace").mkdir()
    process = Backend(starter("namespaces"), tmp_path).started("exec >&- 2>&-; exec sleep 600")
    try:
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


async def test_a_sandbox_ends_with_its_program_although_a_child_lives_on(backend: Backend) -> None:
    process = backend.started("(trap '' TERM; exec sleep 600) & readlink /proc/self/ns/pid")
    said, _ = process.communicate()
    await eventually(lambda: not processes_in(said.strip()))


async def test_no_process_survives_the_one_that_the_runner_started(backend: Backend) -> None:
    script = "(trap '' TERM HUP; setsid sleep 600) & readlink /proc/self/ns/pid; exec sleep 600"
    process = backend.started(script)
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    assert len(processes_in(namespace)) >= 2
    process.kill()
    process.communicate()
    await eventually(lambda: not processes_in(namespace))


async def test_all_processes_of_a_program_have_the_lowest_priority(backend: Backend) -> None:
    # Within `$(...)` readlink has ended when the line is printed, so that what is listed stays.
    process = backend.started('sleep 600 & echo "$(readlink /proc/self/ns/pid)"; exec sleep 600')
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    try:
        processes = processes_in(namespace)
        assert len(processes) >= 3
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in (*processes, process.pid)} == {LOWEST}
    finally:
        process.kill()
        process.communicate()


def test_a_program_without_a_sandbox_has_the_lowest_priority() -> None:
    line = bare([SHELL, "-c", "echo started; exec sleep 600"])
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "started\n"
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == LOWEST
        finally:
            process.kill()


@pytest.fixture
def dying_runner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that starts a program in a sandbox and then sleeps."""
    require_sandbox()
    hold = (
        "import json, subprocess, sys, time; from pathlib import Path;"
        "from spawnmesh_runner.clients.sandbox.command_line import *;"
        f"limits = ProcessLimits({512 * 1024 * 1024}, 32, 128, 1024, 60);"
        f"place = Confinement(Path({str(tmp_path)!r}), (), False, limits);"
        "subprocess.Popen(namespaces(['/bin/sh', '-c', 'readlink /proc/self/ns/pid; exec sleep 600'], place));"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def test_a_sandbox_ends_with_a_runner_that_is_killed(dying_runner: subprocess.Popen[str]) -> None:
    assert dying_runner.stdout is not None
    namespace = dying_runner.stdout.readline().strip()
    await eventually(lambda: len(processes_in(namespace)) == 2)
    dying_runner.kill()
    dying_runner.wait()
    await eventually(lambda: not processes_in(namespace))


async def test_a_runner_finds_a_sandbox_and_leaves_nothing_behind(tmp_path: Path) -> None:
    require_sandbox()
    sandbox = await find_sandbox(tmp_path, False)
    assert sandbox.backend in ("namespaces", "bubblewrap")
    assert sandbox.command_line is not None
    assert os.listdir(tmp_path) == []


async def test_an_operator_may_do_without_a_sandbox(tmp_path: Path) -> None:
    assert (await find_sandbox(tmp_path, True)).backend == "none"


def test_a_runner_that_may_make_no_namespaces_finds_none_and_says_why(tmp_path: Path) -> None:
    require_sandbox()  # User namespaces have to be there before they can be forbidden.
    find = (
        "import asyncio, pathlib, sys; from spawnmesh_runner.clients.sandbox.sandbox import find_sandbox;"
        "print(asyncio.run(find_sandbox(pathlib.Path(sys.argv[1]), False)).backend)"
    )
    script = f'echo 0 > /proc/sys/user/max_user_namespaces; exec {sys.executable} -c "$0" "$1"'
    line = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", script, find, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    *logged, backend = done.stdout.splitlines()
    assert backend == "unavailable"
    assert "mcp_sandbox_unavailable" in "".join(logged)
    assert "No space left on device" in "".join(logged), "the kernel's word for the limit"


def test_limits_are_not_above_the_runners_own(tmp_path: Path) -> None:
    huge = ProcessLimits(2**50, 2**30, 2**30, 2**50, 2**30)
    line = namespaces([SHELL], Confinement(tmp_path, paths=(), network=False, limits=huge))
    assert json.loads(line[-1])["limits"]["nofile"] < 2**30


def test_a_machine_without_sandboxes_fails_their_tests_unless_that_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = (pytest.fail.Exception, pytest.skip.Exception)
    monkeypatch.delenv(ACCEPT_NO_SANDBOX, raising=False)
    with pytest.raises(outcomes, match="no namespaces here") as ended:
        leave_out("no namespaces here")
    assert ended.type is pytest.fail.Exception
    assert f"{ACCEPT_NO_SANDBOX}=1 accepts" in str(ended.value)
    monkeypatch.setenv(ACCEPT_NO_SANDBOX, "1")
    with pytest.raises(outcomes, match="no namespaces here") as ended:
        leave_out("no namespaces here")
    assert ended.type is pytest.skip.Exception
