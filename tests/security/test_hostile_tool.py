"""A hostile MCP server that is a command, started by a real runner, attacks what is around it.

Each backend of the sandbox is attacked that this machine has, also as the command of a runner that
is not root.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_runner.clients.sandbox.sandbox import Sandbox
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.runner.mcp_fixtures import config, text, tool_results
from tests.support.runner.sandboxes import BACKENDS, PYTHON, Starter, processes_in, starter
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.security import tool_attacks
from tests.support.security.tool_attacks import MIB, connecting, reading, writing
from tests.support.waiting import eventually

PROGRAM = Path(__file__).parents[1] / "support" / "runner" / "mcp_attacker.py"
MAX_PROCESSES = 24
MAX_MEMORY_BYTES = 160 * MIB
MAX_WORKSPACE_BYTES = 32 * MIB
LIMIT_EXCEEDED = "MCP_LIMIT_EXCEEDED: the server was ended, because "
TOO_MUCH_MEMORY = f"{LIMIT_EXCEEDED}its processes held more than {MAX_MEMORY_BYTES} bytes of memory"
TOO_MANY_BYTES = f"{LIMIT_EXCEEDED}the workspace of the run had more than {MAX_WORKSPACE_BYTES} bytes"


@dataclass(frozen=True, slots=True)
class Attack:
    """The outcomes of all attacks, by their names, and what the attacked had."""

    outcomes: dict[str, str]
    starter: Starter
    outside: Path
    leftover: list[int]


@dataclass(frozen=True, slots=True)
class Place:
    """A runner of some user, its keys, and a folder that this user may enter."""

    starter: Starter
    keys: Path
    folder: Path

    @property
    def mesh(self) -> ScriptedMesh:
        """Return new peers with a run to be done."""
        mesh = ScriptedMesh(TokenMinter("session", self.keys / "session.pem"))
        mesh.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
        return mesh

    def server(self, **limits: Any) -> dict[str, Any]:
        """Return the configuration of the hostile server. Its program could be written to."""
        readable = self.folder / "program"
        readable.mkdir(exist_ok=True)
        shutil.copy(PROGRAM, readable)
        (readable / PROGRAM.name).chmod(0o666)
        is_own = self.starter.uid == os.geteuid()
        return {
            "command": sys.executable if is_own else PYTHON,
            "args": [str(readable / PROGRAM.name)],
            "paths": [*([sys.prefix, sys.base_prefix] if is_own else []), str(readable)],
            "max_processes": MAX_PROCESSES,
            "max_open_files": 256,
            "max_file_bytes": 4 * MIB,
            "max_cpu_seconds": 120,
            **limits,
        }

    async def outcomes(
        self, mesh: ScriptedMesh, codes: dict[str, str], server: dict[str, Any], **options: Any
    ) -> dict[str, str]:
        """Return the results of the codes, which one run has the server execute."""

        async def find(_root: Path, _allow_unsandboxed: bool) -> Sandbox:
            return Sandbox(self.starter.backend, self.starter.command_line)

        results = await tool_results(
            mesh,
            self.keys,
            self.folder,
            *(("mcp__attacker__execute", json.dumps({"code": code})) for code in codes.values()),
            mcp_servers=("attacker",),
            mcp_config_file=config(self.folder, attacker=server),
            unsandboxed_stdio_servers=False,
            find=find,
            **options,
        )
        return dict(zip(codes, map(text, results), strict=True))


@pytest.fixture(scope="module", params=BACKENDS)
def place(request: pytest.FixtureRequest, keys: Path) -> Iterator[Place]:
    """Give a runner for each backend. What it has belongs to its user, so that nothing but the
    sandbox keeps a program of this user away.
    """
    found = starter(request.param)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-attack-") as folder:
        os.chmod(folder, 0o755)
        own_keys = Path(folder) / "keys"
        shutil.copytree(keys, own_keys)
        give(found, own_keys, *own_keys.iterdir())
        yield Place(found, own_keys, Path(folder))


def give(to: Starter, *paths: Path) -> None:
    """Give the files to the user of the runner."""
    for path in paths:
        os.chown(path, to.uid, -1)


@pytest.fixture(scope="module")
async def attack(place: Place) -> AsyncIterator[Attack]:
    """Have one server make all attacks in one run."""
    keys, mesh = place.keys, place.mesh
    outside = place.folder / "outside"
    outside.mkdir()
    (outside / "private").write_text("private")
    give(place.starter, outside, outside / "private")
    server = place.server(max_memory_bytes=1024 * MIB)
    program = server["args"][0]
    other = place.folder / "work" / "other-run-1"
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
            "namespace": tool_attacks.NAMESPACE,
            "user": tool_attacks.USER,
            "capabilities": tool_attacks.CAPABILITIES,
            "key": reading(keys / "runner.pem"),
            "key above the root": reading(f"/..{keys}/runner.pem"),
            "other workspace": reading(other / "plan.txt"),
            "neighbours": "import os; answer = os.listdir('..')",
            "private file": reading(outside / "private"),
            "environments": tool_attacks.ENVIRONMENTS,
            "processes": tool_attacks.PROCESSES,
            "memory": tool_attacks.MEMORY,
            "runner's memory": reading(f"/proc/{os.getpid()}/mem"),
            "runner's root": f"import os; answer = os.listdir('/proc/{os.getpid()}/root')",
            "loopback port": connecting("AF_INET", ("127.0.0.1", port)),
            "abstract socket": connecting("AF_UNIX", f"\0spawnmesh-{os.getpid()}"),
            "named socket": connecting("AF_UNIX", f"{folder}/postgresql"),
            "away": connecting("AF_INET", ("203.0.113.1", 80)),
            "nested namespace": tool_attacks.NESTED,
            "write outside": writing(outside / "private"),
            "write beside": "answer = open('../../outside/planted', 'ab').write(b'planted')",
            "write own program": writing(program),
            "write to the system": "import os; answer = bool(os.statvfs('/usr').f_flag & os.ST_RDONLY)",
            "write to the kernel": "answer = open('/proc/sys/kernel/core_pattern', 'r+').name",
            "large file": f"answer = open('large', 'wb').write(bytes({8 * MIB}))",
            "temporary files": tool_attacks.MANY_TEMPORARY_BYTES,
            "memory limit": f"answer = len(bytearray({4096 * MIB}))",
            "open files": tool_attacks.OPEN_FILES,
            "cpu limit": "import resource; answer = resource.getrlimit(resource.RLIMIT_CPU)",
            "own file": "open('mine', 'w').write('kept'); answer = open('mine').read()",
            "escaped child": tool_attacks.ESCAPED_CHILD,
            "fork bomb": tool_attacks.FORK_BOMB,
        }

        def work_of_another_run() -> None:
            other.mkdir(exist_ok=True)
            (other / "plan.txt").write_text("the plan of another tenant")
            give(place.starter, other, other / "plan.txt")

        def end_of_another_run() -> None:
            (other / "plan.txt").unlink()
            other.rmdir()

        def on_generate() -> None:
            results = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
            work_of_another_run()
            if len(results) == len(codes):
                end_of_another_run()

        mesh.on_generate = on_generate
        outcomes = await place.outcomes(mesh, codes, server)
        namespace = outcomes["namespace"]
        if place.starter.backend == "bubblewrap":  # It does not wait for those that it has the kernel end.
            await eventually(lambda: not processes_in(namespace))
        yield Attack(outcomes, place.starter, outside, processes_in(namespace))


@pytest.fixture(scope="module")
async def excess(place: Place) -> dict[str, str]:
    """Have servers take more and more, until each is ended. Return the outcomes by name."""
    server = place.server(max_memory_bytes=MAX_MEMORY_BYTES, call_timeout_seconds=60)
    codes = {
        "shared mapping": tool_attacks.SHARED_MAPPING,
        "memfds": tool_attacks.MEMFDS,
        "memory of children": tool_attacks.MEMORY_OF_CHILDREN,
        "deleted files": tool_attacks.DELETED_FILES,
    }
    bound = {"max_workspace_bytes": MAX_WORKSPACE_BYTES}
    outcomes = await place.outcomes(place.mesh, codes, server, **bound)
    # The workspace stays full, so that no server of the same run can be used afterwards.
    codes = {"many files": tool_attacks.MANY_FILES, "afterwards": "answer = 'still there'"}
    return {**outcomes, **await place.outcomes(place.mesh, codes, server, **bound)}


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
    # Python sets the first, and Bubblewrap the second.
    assert set(json.loads(attack.outcomes["environments"])) - {"LC_CTYPE", "PWD"} == own


def test_a_tool_reads_the_memory_of_no_other_process(attack: Attack) -> None:
    # Process 1 of Bubblewrap has nothing that the program has not.
    own = ["/proc/1/mem"] if attack.starter.backend == "bubblewrap" else []
    assert attack.outcomes["memory"] in ("[]", str(own))


def test_a_tool_sees_its_own_workspace_alone(attack: Attack) -> None:
    [name] = attack.outcomes["neighbours"].strip("[]").split(", ")
    assert "other-run" not in name


def test_a_tool_of_a_root_runner_has_another_user(attack: Attack) -> None:
    uid, effective, gid, groups = json.loads(attack.outcomes["user"])
    expected = attack.starter.uid or 65_533
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


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("shared mapping", TOO_MUCH_MEMORY),
        ("memfds", TOO_MUCH_MEMORY),
        ("memory of children", TOO_MUCH_MEMORY),
        ("deleted files", TOO_MANY_BYTES),
        ("many files", TOO_MANY_BYTES),
    ],
)
def test_a_tool_that_takes_more_than_its_bounds_is_ended(
    excess: dict[str, str], name: str, outcome: str
) -> None:
    assert excess[name] == f"{outcome}; it may or may not have been done"


def test_no_tool_is_used_in_a_workspace_above_its_bound(excess: dict[str, str]) -> None:
    reason = "MCP_SERVER_UNAVAILABLE: the call was not made: it may not go on, because the workspace"
    assert excess["afterwards"].startswith(reason)
