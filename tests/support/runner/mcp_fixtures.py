"""MCP servers for runners, and runs that use them."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from spawnmesh.content.v1 import message_pb2

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.mcp_sdk_server import make_server
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SERVER = Path(__file__).parent / "mcp_server.py"
SDK_SERVER = Path(__file__).parent / "mcp_sdk_server.py"
HOSTILE = Path(__file__).parent / "mcp_hostile.py"
RESULT = message_pb2.ROLE_TOOL_RESULT


def stdio(*words: str, program: Path = SERVER, **options: Any) -> dict[str, Any]:
    """Return the configuration of a server that is a process."""
    paths = [sys.prefix, sys.base_prefix, str(program.parent)]
    return {"command": sys.executable, "args": [str(program), *words], "paths": paths, **options}


def config(tmp_path: Path, **servers: dict[str, Any]) -> Path:
    """Write a configuration file. A server that names no tenants is for all."""
    file = tmp_path / "mcp.json"
    granted = {name: {"tenants": ["*"], **server} for name, server in servers.items()}
    file.write_text(json.dumps({"servers": granted}))
    return file


async def tool_results(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, *calls: tuple[str, str], epoch: int = 1, **options: Any
) -> list[message_pb2.Message]:
    """Execute a run whose model makes the calls one after another and then answers.

    Return the tools' results.
    """
    servers = options.pop("mcp_servers", ("weather",))
    tools = options.pop("tools", ())
    for number, (tool, arguments) in enumerate(calls):
        mesh.answers.append(calling((f"c{number}", tool, arguments)))
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=epoch, tools=tools, mcp_servers=servers)
    async with running_runner(mesh, keys, tmp_path / "work", **options):
        await eventually(lambda: mesh.finalized or mesh.failed)
        await eventually(lambda: not os.listdir(tmp_path / "work"))
    assert mesh.failed is None, mesh.failed
    return mesh.messages(RESULT)


def text(message: message_pb2.Message) -> str:
    return message.content[0].text.text


def is_alive(pid: int) -> bool:
    """Return True if the process runs. A zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


@asynccontextmanager
async def http_server(*, json_response: bool) -> AsyncIterator[str]:
    """Serve the server that is made with the SDK at an address of this machine, in this process.

    It answers with JSON, otherwise with a stream of events.
    """
    app = make_server().streamable_http_app(json_response=json_response)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving
