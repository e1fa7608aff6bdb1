"""The connection to one MCP server during one run: connect, list, call and reconnect."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from mcp.client import Client, Transport
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, reason_of

from spawnmesh_runner.clients.mcp.config import McpServer, confinement_of
from spawnmesh_runner.clients.mcp.credentials import SecretMissing, redact_secrets, resolve_secrets
from spawnmesh_runner.clients.mcp.http import open_http
from spawnmesh_runner.clients.mcp.result import result_text, truncate_with_note
from spawnmesh_runner.clients.mcp.stderr_tail import StderrTail
from spawnmesh_runner.clients.mcp.stdio import Streams, open_stdio
from spawnmesh_runner.clients.sandbox.cgroup import own_cgroup, ran_out_of_memory
from spawnmesh_runner.clients.sandbox.sandbox import Sandbox
from spawnmesh_runner.clients.sandbox.watch import (
    Bounds,
    memory_excess,
    wait_for_excess,
    workspace_excess,
)
from spawnmesh_runner.domain.tools import ToolRefused

log = structlog.get_logger()

_MAX_STARTS = 4  # Otherwise a server that ends at each call would be started again for ever.
_MAX_PAGES = 32
_MAX_LISTED = 1024
_MAX_MESSAGE_BYTES = 2_000
# The SDK's texts for a connection that has ended.
_ENDED_TEXTS = ("Connection closed", "SSE stream ")
_UNKNOWN_OUTCOME = "it may or may not have been done"


class ServerUnavailable(Exception):
    """The server cannot be used.

    The text is a plain clause for people and models. It stands in the system prompt, so it repeats
    nothing that the server or the system said.
    """


class McpConnection:
    """The connection to one server of a run.

    `keep_connected` runs in one task for as long as the connection is used. The other methods may
    be called from any task.
    """

    def __init__(
        self, name: str, server: McpServer, workspace: Path, sandbox: Sandbox, max_workspace_bytes: int
    ) -> None:
        self._name = name
        self._server = server
        self._workspace = workspace
        self._sandbox = sandbox
        self._max_workspace_bytes = max_workspace_bytes
        self._excess = ""
        self._cgroup: Path | None = None
        self._secrets: list[str] = []
        self._stderr = StderrTail()
        self._client: Client | None = None
        self._listed: list[Tool] | None = None
        self._problem = ""
        self._found_full_disk = False
        # Set once there is a client, or once there will be none any more.
        self._ready = asyncio.Event()
        self._needed = asyncio.Event()
        self._lost = asyncio.Event()
        self._closed = False
        self._is_connected_once = False

    def close(self) -> bool:
        """Make `keep_connected` return.

        Return False if it is still connecting and cannot notice.
        """
        self._closed = True
        self._lost.set()
        self._needed.set()
        return self._is_connected_once

    async def keep_connected(self) -> None:
        """Connect and keep the connection until it is lost or `close` is called.

        Reconnect when a call needs it.

        The SDK requires that one task enters and leaves the connection. Raises nothing but
        CancelledError.
        """
        try:
            for _ in range(_MAX_STARTS):
                was_connected = await self._connect_and_wait()
                if not was_connected or self._is_closed():
                    return
                log.warning("mcp_server_lost", server=self._name, stderr=self._said())
                await self._needed.wait()
                if self._is_closed():
                    return
                self._is_connected_once = False
            self._problem = f"it ended {_MAX_STARTS} times, and is not started again in this run"
        finally:
            self._problem = self._problem or "it is no longer connected"
            self._ready.set()

    async def tools(self) -> list[Tool]:
        """Return the tools that the server listed at its first connection.

        Raises ServerUnavailable, and MaterializeError DISK_FULL if there was no room to start it.
        """
        await self._ready.wait()
        if self._listed is None and self._found_full_disk:
            raise MaterializeError(MaterializeReason.DISK_FULL)
        if self._listed is None:
            raise ServerUnavailable(self._problem)
        return self._listed

    def sanitize(self, text: str, max_bytes: int) -> str:
        """Return a server's text without secrets and invisible characters, within `max_bytes`."""
        return truncate_with_note(redact_secrets(text, self._secrets), max_bytes)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool and return its result as a text for the model.

        Raises ToolRefused for every other outcome.
        """
        client = await self._connected()
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        seconds = self._server.call_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                result = await client.session.send_request(request, CallToolResult)
        except TimeoutError:
            raise ToolRefused(
                "MCP_TIMEOUT", f"no answer within {seconds:g} seconds; {_UNKNOWN_OUTCOME}"
            ) from None
        except MCPError as error:
            if self._has_lost(client, error):
                if excess := self._found_excess():
                    raise ToolRefused(
                        "MCP_LIMIT_EXCEEDED",
                        f"the server was ended, because {excess}; {_UNKNOWN_OUTCOME}",
                    ) from None
                raise ToolRefused(
                    "MCP_SERVER_LOST", f"the server ended during the call; {_UNKNOWN_OUTCOME}"
                ) from None
            raise ToolRefused("MCP_ERROR", self.sanitize(error.message, _MAX_MESSAGE_BYTES)) from None
        except ValidationError:
            raise ToolRefused(
                "MCP_MALFORMED_ANSWER", f"the server's answer is no tool result; {_UNKNOWN_OUTCOME}"
            ) from None
        except Exception as error:  # noqa: BLE001 - an SDK error fails no run
            log.warning("mcp_call_failed", server=self._name, error=type(error).__name__)
            raise ToolRefused("MCP_ERROR", f"the call failed on its way; {_UNKNOWN_OUTCOME}") from None
        text = result_text(result, secrets=self._secrets, max_bytes=self._server.max_result_bytes)
        if result.is_error:
            raise ToolRefused("MCP_TOOL_ERROR", text)
        return text

    async def _connected(self) -> Client:
        """Return the client, after a reconnect if the connection was lost. Raises ToolRefused."""
        if not self._ready.is_set():
            self._needed.set()
            await self._ready.wait()
        if self._client is None:
            said = f"; its last lines on standard error: {said}" if (said := self._said()) else ""
            raise ToolRefused("MCP_SERVER_UNAVAILABLE", f"the call was not made: {self._problem}{said}")
        return self._client

    def _is_closed(self) -> bool:
        return self._closed

    def _lose(self) -> None:
        """Mark the connection as lost.

        Later calls wait for a new one, also while the old one is still closing.
        """
        if not self._closed:
            self._client = None
            self._ready.clear()
        self._lost.set()

    def _has_lost(self, client: Client, error: MCPError) -> bool:
        """Return True if the error says that the connection ended.

        Servers use its code for other errors, too.
        """
        if client is not self._client:
            return True
        if error.code == CONNECTION_CLOSED and error.message.startswith(_ENDED_TEXTS):
            self._lose()
        return client is not self._client

    async def _connect_and_wait(self) -> bool:
        """Connect, and keep the connection until it is lost.

        Return False, with `_problem` set, if connecting failed.
        """
        was_connected = False
        try:
            async with asyncio.timeout(self._server.connect_timeout_seconds) as limit:
                client_info = Implementation(name="spawnmesh", version="1")
                async with Client(self._open(), mode="auto", cache=None, client_info=client_info) as client:
                    listed = await _list(client)
                    self._listed = listed if self._listed is None else self._listed
                    limit.reschedule(None)
                    was_connected, self._client, self._is_connected_once = True, client, True
                    self._needed.clear()
                    self._ready.set()
                    await self._lost.wait()
        except Exception as error:  # noqa: BLE001 - a server's failure fails no run
            if not was_connected:
                self._problem = self._describe_problem(error)
                self._found_full_disk = self._server.url is None and _is_disk_full(error)
                log.warning(
                    "mcp_server_unavailable",
                    server=self._name,
                    why=self._problem,
                    error=_type_names(error),
                    stderr=self._said(),
                )
        finally:
            self._lose()
            if not self._closed:
                self._lost.clear()
        return was_connected

    def _open(self) -> Transport:
        server = self._server
        if server.url is not None:
            given = {
                **server.headers,
                **({"Authorization": server.bearer_token} if server.bearer_token else {}),
            }
            headers, self._secrets = resolve_secrets(given)
            if server.bearer_token:
                headers["Authorization"] = f"Bearer {headers['Authorization']}"
            return open_http(
                server.url,
                headers,
                connect_seconds=server.connect_timeout_seconds,
                call_seconds=server.call_timeout_seconds,
            )
        env, self._secrets = resolve_secrets(server.env)
        self._stderr = StderrTail()
        return self._open_command(env)

    @asynccontextmanager
    async def _open_command(self, env: Mapping[str, str]) -> AsyncIterator[Streams]:
        server, sandbox = self._server, self._sandbox
        assert server.command is not None
        assert sandbox.command_line is not None, "such a server is refused before"
        command_line = sandbox.command_line
        self._excess = await workspace_excess(self._workspace, self._max_workspace_bytes)
        if self._excess:
            raise OSError("it would be ended at once")
        # Two more processes make the sandbox.
        count = server.max_processes + 2
        async with own_cgroup(sandbox.cgroup, server.max_memory_bytes, count) as cgroup:
            self._cgroup = cgroup
            confinement = confinement_of(server, self._workspace, cgroup)
            async with open_stdio(
                server.command,
                server.args,
                env,
                self._workspace,
                self._workspace / ".mcp" / self._name,
                self._stderr,
                self._lose,
                start_with=lambda arguments: command_line(arguments, confinement),
                watch=self._watch,
                on_excess=self._end_for,
            ) as streams:
                try:
                    yield streams
                finally:
                    self._found_excess()  # While the cgroup is there.

    async def _watch(self, pid: int) -> None:
        """Return once the server uses more than it may."""
        memory_bytes = self._server.max_memory_bytes if self._cgroup is None else None
        bounds = Bounds(memory_bytes, self._workspace, self._max_workspace_bytes)
        self._end_for(await wait_for_excess(pid, bounds, self._sandbox.processes))

    def _end_for(self, excess: str) -> None:
        """Note why the server is being ended."""
        self._excess = excess
        log.warning("mcp_server_above_limit", server=self._name, why=excess)

    def _found_excess(self) -> str:
        """Return what the server used too much of, for which it was ended."""
        if not self._excess and self._cgroup is not None and ran_out_of_memory(self._cgroup):
            self._excess = memory_excess(self._server.max_memory_bytes)
        return self._excess

    def _describe_problem(self, error: BaseException) -> str:
        kinds = {type(leaf) for leaf in _leaves(error)}
        if SecretMissing in kinds:
            return "a secret that its configuration refers to is missing"
        if TimeoutError in kinds:
            return f"it did not answer within {self._server.connect_timeout_seconds:g} seconds"
        if self._server.url is not None:
            return "it could not be reached, or did not answer as an MCP server does"
        if excess := self._found_excess():
            return f"it may not go on, because {excess}"
        if any(issubclass(kind, OSError) for kind in kinds):
            return "it could not be started"
        return "it ended, or did not answer as an MCP server does"

    def _said(self) -> str:
        """Return the end of the server's standard error, for logs and tool results."""
        return self._stderr.shown(self._secrets)


async def _list(client: Client) -> list[Tool]:
    """Return the tools that the server lists, at most _MAX_LISTED."""
    listed: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        listed += page.tools
        cursor = page.next_cursor
        if not cursor or len(listed) > _MAX_LISTED:
            break
    return listed[:_MAX_LISTED]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _is_disk_full(error: BaseException) -> bool:
    return any(
        isinstance(leaf, OSError) and reason_of(leaf) is MaterializeReason.DISK_FULL
        for leaf in _leaves(error)
    )


def _type_names(error: BaseException) -> str:
    """Name the types of the errors. Their texts may hold anything, so they are not logged."""
    return ", ".join(sorted({type(leaf).__name__ for leaf in _leaves(error)}))
