"""The page about MCP servers works unchanged: its server, its configuration and its program."""

import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.mesh.mcp_page import PAGE, PROGRAM, SLOW_SERVER

TENANT = "weatherly"
PROMPT = f"You are the {CALLER}. Do as you are told."


@pytest.fixture(scope="module")
async def served(stack: Stack) -> Stack:
    """Return the mesh, with the tenant that may use the server on the page."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    return stack


async def test_program_on_the_page_prints_what_the_page_says(served: Stack, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(PROGRAM)
    env = {
        **os.environ,
        "SPAWNMESH_DATA": str(served.data_dir),
        "SPAWNMESH_TOKEN": served.client_token(TENANT),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    [said] = re.findall(r"^prints `(.*)`$", PAGE, re.MULTILINE)
    assert printed.decode().strip() == said


async def test_calls_are_in_the_transcript_and_in_the_trace(served: Stack) -> None:
    token = served.client_token(TENANT)
    targets = served.targets
    async with connect_wire(
        session=targets["session"], transcript=targets["transcript"], token=token
    ) as mesh:
        profile = AgentProfile(
            agent_id="clerk", system_prompt=PROMPT, models=[SCRIPTED_AGENT], mcp_servers=["weather"]
        )
        await mesh.put_agent(profile)
        task = 'mcp__weather__forecast {"city": "Bergen"}'
        session = await mesh.spawn(task, agent_id="clerk", wait_seconds=60)
        runner_said = (served.data_dir / "logs" / "runner.log").read_text()
        assert session.latest_run.result_text == "Tomorrow the sun shines in Bergen.", runner_said[-4000:]
        entries = [entry async for entry in mesh.transcript(session.session_id)]
    [result] = [
        entry.body.message for entry in entries if entry.body.message.role == message_pb2.ROLE_TOOL_RESULT
    ]
    assert result.tool_name == "mcp__weather__forecast"
    assert result.content[0].text.text == "Tomorrow the sun shines in Bergen."
    async with asyncio.timeout(60):
        while b"execute_tool mcp__weather__forecast" not in served.traces_file.read_bytes():
            await asyncio.sleep(0.1)
    assert b"Tomorrow the sun" not in served.traces_file.read_bytes()


async def test_run_of_an_agent_that_names_an_unknown_server_says_so(served: Stack) -> None:
    async with connect_wire(session=served.targets["session"], token=served.client_token(TENANT)) as mesh:
        profile = AgentProfile(
            agent_id="lost", system_prompt=PROMPT, models=[SCRIPTED_AGENT], mcp_servers=["weather", "wether"]
        )
        await mesh.put_agent(profile)
        session = await mesh.spawn("x {}", agent_id="lost", wait_seconds=60)
    run = session.latest_run
    assert run.state == session_pb2.RUN_STATE_FAILED
    assert run.error_reason == reason_pb2.REASON_MCP_SERVER_NOT_OFFERED
    assert run.error_message == "no runner offers this tenant the MCP servers that its agent names: wether"


def slow_servers(served: Stack) -> list[str]:
    """Return the processes of the slow server, in a sandbox or around it."""
    program = str(served.data_dir.parent / "programs" / SLOW_SERVER).encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and program in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


async def until_started(served: Stack) -> None:
    """Wait until the slow server runs. It works on the call of its run from then on."""
    try:
        async with asyncio.timeout(60):
            while not slow_servers(served):
                await asyncio.sleep(0.05)
    except TimeoutError:
        runner_said = (served.data_dir / "logs" / "runner.log").read_text()
        raise AssertionError(f"the slow server was not started: {runner_said[-4000:]}") from None


async def until_gone(served: Stack) -> None:
    async with asyncio.timeout(60):
        while slow_servers(served):
            await asyncio.sleep(0.05)


async def test_killed_session_and_a_stopped_runner_leave_no_server(served: Stack) -> None:
    async with connect_wire(session=served.targets["session"], token=served.client_token(TENANT)) as mesh:
        profile = AgentProfile(
            agent_id="idle", system_prompt=PROMPT, models=[SCRIPTED_AGENT], mcp_servers=["slow"]
        )
        await mesh.put_agent(profile)
        session = await mesh.spawn('mcp__slow__sleep {"seconds": 600}', agent_id="idle")
        await until_started(served)
        await mesh.kill(session.session_id)
        await until_gone(served)
        session = await mesh.spawn('mcp__slow__sleep {"seconds": 600}', agent_id="idle")
        await until_started(served)
        os.kill(served.pids["runner"], signal.SIGTERM)
        await until_gone(served)
        await mesh.kill(session.session_id)
    runner_said = (served.data_dir / "logs" / "runner.log").read_text()
    assert "fork() handlers" not in runner_said, "gRPC takes part in the runner's forks, and may crash them"
    await served.restart("runner")
