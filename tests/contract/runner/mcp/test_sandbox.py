"""MCP servers in the sandbox of a real runner: what they are for still works."""

import asyncio
import json
import os
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runner.app import SANDBOX_CHECK
from spawnmesh_runner.clients.sandbox.sandbox import NO_SANDBOX, Sandbox

from tests.support.model_router.answers import calling
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.mcp_fixtures import (
    RESULT,
    SDK_SERVER,
    config,
    http_server,
    stdio,
    text,
    tool_results,
)
from tests.support.runner.sandboxes import processes_in, require_sandbox
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

ATTACKER = Path(__file__).parents[3] / "support" / "runner" / "mcp_attacker.py"
FORECAST = ("mcp__weather__forecast", '{"city": "Oslo"}')
NAMESPACE = "import os; answer = os.readlink('/proc/self/ns/pid')"


def execute(code: str) -> tuple[str, str]:
    """Return the call that has the server execute the code."""
    return "mcp__attacker__execute", json.dumps({"code": code})


async def sandboxed(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, *calls: tuple[str, str], **options: Any
) -> list[str]:
    """Return the texts of the calls' results."""
    require_sandbox()
    results = await tool_results(mesh, keys, tmp_path, *calls, unsandboxed_stdio_servers=False, **options)
    return list(map(text, results))


async def test_a_server_made_with_the_SDK_works_and_shares_the_files_of_the_run(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    read = "import os; answer = open('plan.txt').read()"
    write = "open('plan.txt', 'a').write(' and south'); os.chmod('plan.txt', 0o600); answer = os.getcwd()"
    file = config(tmp_path, weather=stdio(program=SDK_SERVER), attacker=stdio(program=ATTACKER))
    forecast, _, seen, cwd, shown = await sandboxed(
        mesh,
        keys,
        tmp_path,
        FORECAST,
        ("write_file", '{"path": "plan.txt", "content": "north"}'),
        execute(read),
        execute(f"import os; {write}"),
        ("read_file", '{"path": "plan.txt"}'),
        tools=("write_file", "read_file"),
        mcp_servers=("weather", "attacker"),
        mcp_config_file=file,
    )
    assert forecast == "1 fine day(s) in Oslo"
    assert seen == "north"
    assert cwd == str(tmp_path / "work" / f"{mesh.session_id}-1")
    assert json.loads(shown)["bytes"] == len("north and south")


async def test_a_server_has_a_network_if_its_operator_says_so(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        address = listening.getsockname()
        code = f"import socket; socket.create_connection({address!r}, 5); answer = 'connected'"
        file = config(tmp_path, attacker=stdio(program=ATTACKER, network=True))
        [outcome] = await sandboxed(
            mesh, keys, tmp_path, execute(code), mcp_servers=("attacker",), mcp_config_file=file
        )
    assert outcome == "connected"


async def test_a_server_that_crashes_at_its_start_is_logged_with_its_last_words(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = {**stdio(), "args": ["-c", "import sys; sys.exit('no license')"]}
    missing = {"command": "/usr/bin/env", "args": ["no-such-interpreter"]}
    await sandboxed(
        mesh,
        keys,
        tmp_path,
        FORECAST,
        mcp_servers=("crash", "missing", "weather"),
        mcp_config_file=config(tmp_path, crash=crash, missing=missing, weather=stdio()),
        log_level="warning",
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if "mcp_server_unavailable" in line]
    said = {event["server"]: event["stderr"] for event in map(json.loads, lines)}
    assert said["crash"] == "no license"
    assert "no-such-interpreter" in said["missing"]


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_killed_run_leaves_no_process_in_the_sandbox(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, is_stubborn: bool
) -> None:
    require_sandbox()
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    child = "import os, time; pid = os.fork(); pid or (os.setsid(), time.sleep(600));"
    mesh.answers.append(calling(("c", *execute(f"{ignore if is_stubborn else ''}{child}{NAMESPACE}"))))
    mesh.queue_run(mcp_servers=("attacker",))
    mesh.hold_model = asyncio.Event()
    mesh.hold_model.set()
    hold = mesh.hold_model
    mesh.on_generate = lambda: hold.clear() if len(mesh.prompts) > 1 else None
    file = config(tmp_path, attacker=stdio(program=ATTACKER))
    async with running_runner(
        mesh,
        keys,
        tmp_path / "work",
        mcp_config_file=file,
        unsandboxed_stdio_servers=False,
        heartbeat_share=OFTEN,
    ):
        await eventually(lambda: mesh.messages(RESULT) and len(mesh.prompts) == 2)
        namespace = text(mesh.messages(RESULT)[0])
        assert len(processes_in(namespace)) == 3, "process 1, the server and its child"
        mesh.lease_lost = True
        await eventually(lambda: not processes_in(namespace) and not os.listdir(tmp_path / "work"))


async def find_none(_root: Path, _allow_unsandboxed: bool) -> Sandbox:
    """Find no sandbox, as where user namespaces are forbidden."""
    return NO_SANDBOX


async def test_FailRun__a_server_that_cannot_be_confined_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    mesh.queue_run(mcp_servers=("far", "weather"))
    (port,) = free_ports(1)
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}), far={"url": "http://127.0.0.1:9/mcp"})
    async with running_runner(
        mesh,
        keys,
        tmp_path / "work",
        find=find_none,
        mcp_config_file=file,
        unsandboxed_stdio_servers=False,
        health_listen=f"127.0.0.1:{port}",
    ):
        await eventually(lambda: mesh.failed)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = health_pb2.HealthCheckRequest(service=SANDBOX_CHECK)
            health = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_MCP_SANDBOX_UNAVAILABLE
    assert "no sandbox for them: weather; " in mesh.failed.message
    assert "RUNNER_UNSANDBOXED_STDIO_SERVERS" in mesh.failed.message
    assert not notes.exists(), "nothing was started"


async def test_a_server_at_an_address_needs_no_sandbox(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    async with http_server(json_response=True) as url:
        file = config(tmp_path, weather={"url": url}, command={"command": sys.executable})
        [result] = await tool_results(
            mesh,
            keys,
            tmp_path,
            FORECAST,
            find=find_none,
            mcp_config_file=file,
            unsandboxed_stdio_servers=False,
        )
    assert text(result) == "1 fine day(s) in Oslo"


async def test_a_server_that_the_kernel_ends_for_its_memory_is_named(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """A plain directory stands in for the cgroup."""
    delegated = tmp_path / "delegated"
    delegated.mkdir()
    write = f"""
import os
from pathlib import Path
for cgroup in Path({str(delegated)!r}).iterdir():
    (cgroup / "memory.events").write_text("oom 1\\noom_kill 1\\n")
os._exit(137)
"""
    file = config(tmp_path, attacker=stdio(program=ATTACKER, max_memory_bytes=64 * 1024 * 1024))
    [ended] = await tool_results(
        mesh,
        keys,
        tmp_path,
        execute(write),
        mcp_servers=("attacker",),
        mcp_config_file=file,
        mcp_cgroup=delegated,
    )
    assert text(ended) == (
        "MCP_LIMIT_EXCEEDED: the server was ended, because its processes held more than 67108864 bytes"
        " of memory; it may or may not have been done"
    )


async def test_a_cgroup_that_is_not_delegated_ends_the_runner_with_one_line(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    file = config(tmp_path, weather=stdio())
    with pytest.raises(SystemExit, match="RUNNER_MCP_CGROUP is no cgroup that is delegated"):
        async with running_runner(
            mesh, keys, tmp_path / "work", mcp_config_file=file, mcp_cgroup=tmp_path / "missing"
        ):
            raise AssertionError("it was started")
