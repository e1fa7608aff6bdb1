"""The MCP servers of a run: connected while it goes on, and gone when it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from spawnmesh_runtime.telemetry import traced

from spawnmesh_runner.mcp.config import McpServer
from spawnmesh_runner.tools.tool import RemoteTool

if TYPE_CHECKING:
    from spawnmesh_runner.mcp.connection import Connection

log = structlog.get_logger()

MAX_TOOLS = 100
"""Of all servers of a run: the router passes on 128 in all, and providers take no more."""
_LEAVE_SECONDS = 10.0
_LOGGERS = ("mcp", "client")  # The SDK's: they tell what servers said, which no log is to hold.


@dataclass(frozen=True, slots=True)
class McpTools:
    """What a run has of its servers: their tools, and a note for the model on those that cannot be used, empty where all can."""

    tools: tuple[RemoteTool, ...] = ()
    note: str = ""


def load_sdk() -> None:
    """Imports what speaks with servers, and has it log nothing. It takes a second and 20 MB, which a runner without servers is spared."""
    import spawnmesh_runner.mcp.connection  # noqa: F401 - the modules below find it loaded

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_servers(servers: Mapping[str, McpServer], workspace: Path) -> AsyncIterator[McpTools]:
    """Connects to the servers side by side, each within its time, and gives their tools. When the block ends nothing of them is left.

    `load_sdk` goes before. A server that cannot be reached fails nobody. Each connection lives in a task of its own, which enters and leaves it.
    """
    if not servers:
        yield McpTools()
        return
    from spawnmesh_runner.mcp.connection import Connection

    connections = {name: Connection(name, server, workspace) for name, server in servers.items()}
    try:
        async with asyncio.TaskGroup() as group:
            holding = [group.create_task(connection.hold()) for connection in connections.values()]
            try:
                async with traced("connect_mcp_servers", spawnmesh__mcp__servers=",".join(servers)):
                    offered = await _gathered(servers, connections)
                yield offered
            finally:
                for connection, task in zip(connections.values(), holding, strict=True):
                    if not connection.leave():
                        task.cancel()
                _, late = await asyncio.wait(holding, timeout=_LEAVE_SECONDS)
                for task in late:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # The block's own: no task of the group raises anything.


async def _gathered(servers: Mapping[str, McpServer], connections: Mapping[str, "Connection"]) -> McpTools:
    from spawnmesh_runner.mcp.connection import Unavailable
    from spawnmesh_runner.mcp.offer import offered

    tools: list[RemoteTool] = []
    missing: list[str] = []
    for name, connection in connections.items():
        try:
            listed = await connection.tools()
        except Unavailable as error:
            missing.append(f"- {name}: {error}")
            continue
        tools += offered(name, servers[name], listed, connection.call, connection.shown)
    if len(tools) > MAX_TOOLS:
        log.warning(
            "mcp tools left out", why=f"there are more than {MAX_TOOLS}", tools=[one.name for one in tools[MAX_TOOLS:]]
        )
    note = "These MCP servers cannot be used in this run, and their tools are missing:\n" + "\n".join(missing)
    return McpTools(tuple(tools[:MAX_TOOLS]), note if missing else "")
