"""A hostile MCP server that is a command, started by a real runner, attacks what is around it."""

import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_runner.loop.messages import text_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.runner.fixtures import ScriptedMesh
from tests.support.runner.mcp_fixtures import config, text, tool_results
from tests.support.runner.sandboxes import processes_in, require_sandbox

PROGRAM = Path(__file__).parents[1] / "support" / "runner" / "mcp_attacker.py"
MIB = 1024 * 1024
MAX_PROCESSES = 24

NAMESPACE = "import os; answer = os.readlink('/proc/self/ns/pid')"
USER = "import os; answer = [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]"
CAPABILITIES = """
wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
answer = []
for pid in ("self", "1"):
    lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    answer += [int(lines[name], 16) for name in wanted]
"""
ENVIRONMENTS = """
import glob, json
names = set()
for file in glob.glob("/proc/*/environ"):
    try:
        names.update(entry.partition("=")[0] for entry in open(file).read().split("\\0") if entry)
    except OSError:
        pass
answer = json.dumps(sorted(names))
"""
PROCESSES = "import os; answer = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
MEMORY = """
import glob, os
answer = []
for file in glob.glob("/proc/*/mem"):
    if file.split("/")[2] not in ("self", "thread-self", str(os.getpid())):
        try:
            open(file, "rb")
            answer.append(file)
        except OSError:
            pass
"""
NESTED = """
import ctypes, os
pid = os.fork()
if pid == 0:
    os._exit(0 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 1)
answer = "refused" if os.waitpid(pid, 0)[1] else "made"
"""
FORK_BOMB = """
import os, time
answer = 0
try:
    for _ in range(400):
        if os.fork() == 0:
            time.sleep(600)
        answer += 1
except BlockingIOError:
    pass
"""
OPEN_FILES = """
import os
answer, opened = 0, []
try:
    for _ in range(5000):
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
answer = len(opened)
for fd in opened:
    os.close(fd)
"""
MANY_TEMPORARY_BYTES = """
answer = 0
with open("/tmp/fill", "wb") as file:
    for _ in range(4):
        answer += file.write(bytes(1024 * 1024))
for number in range(100):
    open(f"/tmp/fill{number}", "wb").write(bytes(1024 * 1024))
"""
ESCAPED_CHILD = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
answer = "started"
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """The outcomes of all attacks, by their names, and what the attacked had."""

    outcomes: dict[str, str]
    outside: Path
    leftover: list[int]


def _reading(path: Path | str) -> str:
    return f"answer = open({str(path)!r}, 'rb').read()"


def _writing(path: Path | str) -> str:
    return f"answer = open({str(path)!r}, 'ab').write(b'overwritten')"


def _connecting(family: str, address: object) -> str:
    return (
        f"import socket; one = socket.socket(socket.{family}); one.settimeout(5);"
        f" one.connect({address!r}); answer = 'connected'"
    )


@pytest.fixture(scope="module")
async def attack(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attack]:
    """Have one server make all attacks in one run."""
    require_sandbox()
    tmp_path = tmp_path_factory.mktemp("attack")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "private").write_text("private")
    readable = tmp_path / "program"
    readable.mkdir()
    (readable / PROGRAM.name).write_text(PROGRAM.read_text())
    (readable / PROGRAM.name).chmod(0o666)
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    mesh.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    other = tmp_path / "work" / "other-run-1"
    with ExitStack() as stack:
        listening = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        port = listening.getsockname()[1]
        abstract = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        abstract.bind(f"\0spawnmesh-{os.getpid()}")
        abstract.listen()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        named = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        named.bind(f"{folder}/postgresql")
        named.listen()
        codes = {
            "namespace": NAMESPACE,
            "user": USER,
            "capabilities": CAPABILITIES,
            "key": _reading(keys / "runner.pem"),
            "key above the root": _reading(f"/..{keys}/runner.pem"),
            "other workspace": _reading(other / "plan.txt"),
            "neighbours": "import os; answer = os.listdir('..')",
            "private file": _reading(outside / "private"),
            "environments": ENVIRONMENTS,
            "processes": PROCESSES,
            "memory": MEMORY,
            "runner's memory": _reading(f"/proc/{os.getpid()}/mem"),
            "runner's root": f"import os; answer = os.listdir('/proc/{os.getpid()}/root')",
            "loopback port": _connecting("AF_INET", ("127.0.0.1", port)),
            "abstract socket": _connecting("AF_UNIX", f"\0spawnmesh-{os.getpid()}"),
            "named socket": _connecting("AF_UNIX", f"{folder}/postgresql"),
            "away": _connecting("AF_INET", ("203.0.113.1", 80)),
            "nested namespace": NESTED,
            "write outside": _writing(outside / "private"),
            "write beside": "answer = open('../../outside/planted', 'ab').write(b'planted')",
            "write own program": _writing(readable / PROGRAM.name),
            "write to the system": "import os; answer = bool(os.statvfs('/usr').f_flag & os.ST_RDONLY)",
            "write to the kernel": "answer = open('/proc/sys/kernel/core_pattern', 'r+').name",
            "large file": f"answer = open('large', 'wb').write(bytes({8 * MIB}))",
            "temporary files": MANY_TEMPORARY_BYTES,
            "memory limit": f"answer = len(bytearray({4096 * MIB}))",
            "open files": OPEN_FILES,
            "cpu limit": "import resource; answer = resource.getrlimit(resource.RLIMIT_CPU)",
            "own file": "open('mine', 'w').write('kept'); answer = open('mine').read()",
            "escaped child": ESCAPED_CHILD,
            "fork bomb": FORK_BOMB,
        }

        def work_of_another_run() -> None:
            other.mkdir(exist_ok=True)
            (other / "plan.txt").write_text("the plan of another tenant")

        def end_of_another_run() -> None:
            (other / "plan.txt").unlink()
            other.rmdir()

        namespace: list[str] = []

        def on_generate() -> None:
            results = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
            work_of_another_run()
            if len(results) == len(codes):
                end_of_another_run()
                namespace.append(text(results[0]))

        mesh.on_generate = on_generate
        server = {
            "command": sys.executable,
            "args": [str(readable / PROGRAM.name)],
            "paths": [sys.prefix, sys.base_prefix, str(readable)],
            "max_memory_bytes": 1024 * MIB,
            "max_processes": MAX_PROCESSES,
            "max_open_files": 256,
            "max_file_bytes": 4 * MIB,
            "max_cpu_seconds": 120,
        }
        results = await tool_results(
            mesh,
            keys,
            tmp_path,
            *(("mcp__attacker__execute", json.dumps({"code": code})) for code in codes.values()),
            mcp_servers=("attacker",),
            mcp_config_file=config(tmp_path, attacker=server),
            unsandboxed_stdio_servers=False,
        )
        outcomes = dict(zip(codes, map(text, results), strict=True))
        yield Attack(outcomes, outside, processes_in(namespace[0]))


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("key", "FileNotFoundError"),
        ("key above the root", "FileNotFoundError"),
        ("other workspace", "FileNotFoundError"),
        ("private file", "FileNotFoundError"),
        ("runner's memory", "FileNotFoundError"),
        ("runner's root", "FileNotFoundError"),
        ("loopback port", "ConnectionRefusedError"),
        ("abstract socket", "ConnectionRefusedError"),
        ("named socket", "FileNotFoundError"),
        ("away", "OSError: [Errno 101] Network is unreachable"),
        ("nested namespace", "refused"),
        ("write outside", "FileNotFoundError"),
        ("write beside", "FileNotFoundError"),
        ("write own program", "OSError: [Errno 30] Read-only file system"),
        ("write to the system", "True"),
        ("write to the kernel", "PermissionError"),
        ("large file", "OSError: [Errno 27] File too large"),
        ("temporary files", "OSError: [Errno 28] No space left on device"),
        ("memory limit", "MemoryError"),
        ("cpu limit", "(120, 120)"),
        ("memory", "[]"),
        ("capabilities", "[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]"),
        ("escaped child", "started"),
        ("own file", "kept"),
    ],
)
def test_attack_of_a_tool_has_no_effect(attack: Attack, name: str, outcome: str) -> None:
    assert attack.outcomes[name].startswith(outcome)


def test_a_tool_sees_its_own_processes_alone(attack: Attack) -> None:
    seen = json.loads(attack.outcomes["processes"])
    assert seen == [1, 2]
    assert attack.outcomes["namespace"] != os.readlink("/proc/self/ns/pid")


def test_a_tool_sees_no_environment_of_the_runner(attack: Attack) -> None:
    own = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONSAFEPATH"}
    assert set(json.loads(attack.outcomes["environments"])) - {"LC_CTYPE"} == own


def test_a_tool_sees_its_own_workspace_alone(attack: Attack) -> None:
    [name] = attack.outcomes["neighbours"].strip("[]").split(", ")
    assert "other-run" not in name


def test_a_tool_of_a_root_runner_has_another_user(attack: Attack) -> None:
    uid, effective, gid, groups = json.loads(attack.outcomes["user"])
    expected = os.geteuid() or 65_533
    assert (uid, effective) == (expected, expected)
    assert 0 not in (gid, *groups)


def test_a_tool_starts_a_limited_number_of_processes(attack: Attack) -> None:
    assert 0 < int(attack.outcomes["fork bomb"]) < MAX_PROCESSES


def test_a_tool_opens_a_limited_number_of_files(attack: Attack) -> None:
    assert 0 < int(attack.outcomes["open files"]) < 256


def test_a_tool_changes_nothing_outside_its_workspace(attack: Attack) -> None:
    assert (attack.outside / "private").read_text() == "private"
    assert not (attack.outside / "planted").exists()


def test_no_process_of_a_tool_survives_its_run(attack: Attack) -> None:
    assert attack.outcomes["escaped child"] == "started"
    assert attack.leftover == []
