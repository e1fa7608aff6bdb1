"""The MCP servers of a run: connected while it lasts, and ended with it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from spawnmesh_runtime.telemetry import traced

from spawnmesh_runner.clients.mcp.config import McpServer
from spawnmesh_runner.clients.sandbox.sandbox import Sandbox
from spawnmesh_runner.tools.calling.tool import RemoteTool

if TYPE_CHECKING:
    from spawnmesh_runner.clients.mcp.connection import McpConnection

log = structlog.get_logger()

MAX_TOOLS = 100
"""The limit for all servers of a run: the router forwards 128 tools in all, and providers accept
no more.
"""
_CLOSE_SECONDS = 10.0
_LOGGERS = ("mcp", "client")  # The SDK's loggers write what servers said, which no log may hold.


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of a run's servers, and a note for the model about servers that cannot be used."""

    tools: tuple[RemoteTool, ...] = ()
    note: str = ""


def load_mcp_sdk() -> None:
    """Import the SDK and silence its loggers.

    This takes a second and 20 MB, so only runners with servers do it.
    """
    import spawnmesh_runner.clients.mcp.connection  # noqa: F401 - loads it

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_mcp_servers(
    servers: Mapping[str, McpServer], workspace: Path, sandbox: Sandbox, max_workspace_bytes: int
) -> AsyncIterator[McpTools]:
    """Connect to the servers concurrently, each within its timeout, and yield their tools.

    Call `load_mcp_sdk` first. `sandbox` starts the servers that are commands, and they are ended
    when the workspace has more than `max_workspace_bytes`. A server that cannot be used does not
    fail the run; MaterializeError DISK_FULL says that another runner may have the room. Each
    connection has a task that enters and leaves it. When the block ends, all
    servers have ended.
    """
    if not servers:
        yield McpTools()
        return
    from spawnmesh_runner.clients.mcp.connection import McpConnection

    connections = {
        name: McpConnection(name, server, workspace, sandbox, max_workspace_bytes)
        for name, server in servers.items()
    }
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(connection.keep_connected()) for connection in connections.values()]
            try:
                async with traced("connect_mcp_servers", spawnmesh__mcp__servers=",".join(servers)):
                    offered = await _offered_tools(servers, connections)
                yield offered
            finally:
                for connection, task in zip(connections.values(), tasks, strict=True):
                    if not connection.close():
                        task.cancel()
                _, late = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
                for task in late:
                    task.cancel()
    except BaseExceptionGroup as errors:
        # The error of the block: no task of the group raises one.
        raise errors.exceptions[0] from None


async def _offered_tools(
    servers: Mapping[str, McpServer], connections: Mapping[str, "McpConnection"]
) -> McpTools:
    from spawnmesh_runner.clients.mcp.connection import ServerUnavailable
    from spawnmesh_runner.tools.calling.mcp_tools import offer_tools

    tools: list[RemoteTool] = []
    missing: list[str] = []
    for name, connection in connections.items():
        try:
            listed = await connection.tools()
        except ServerUnavailable as error:
            missing.append(f"- {name}: {error}")
            continue
        tools += offer_tools(name, servers[name], listed, connection.call, connection.sanitize)
    if len(tools) > MAX_TOOLS:
        log.warning(
            "mcp_tools_left_out",
            why=f"there are more than {MAX_TOOLS}",
            tools=[one.name for one in tools[MAX_TOOLS:]],
        )
    note = "These MCP servers cannot be used in this run, and their tools are missing:\n" + "\n".join(missing)
    return McpTools(tuple(tools[:MAX_TOOLS]), note if missing else "")
