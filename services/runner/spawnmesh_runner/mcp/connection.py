"""One server in the service of one run: connected, listed, called, and connected anew where it was lost."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import structlog
from mcp.client.client import Client
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

from spawnmesh_runner.mcp.config import McpServer
from spawnmesh_runner.mcp.credentials import SecretMissing, resolved, without_secrets
from spawnmesh_runner.mcp.http import open_address
from spawnmesh_runner.mcp.result import bounded, result_text
from spawnmesh_runner.mcp.stdio import run_server
from spawnmesh_runner.tools.tool import ToolRefused

log = structlog.get_logger()

_MAX_STARTS = 4  # A server that ends at each call would else be started for ever.
_MAX_PAGES = 32
_MAX_LISTED = 1024
_MAX_MESSAGE_BYTES = 2_000
_ENDED = ("Connection closed", "SSE stream ")  # What the SDK says of it.
_UNSURE = "it may or may not have been done"


class Unavailable(Exception):
    """The server cannot be used; the text is a plain clause for people and models, with nothing of what the server or the system said."""


class Connection:
    """One server of a run. `hold` has the connection, and goes on for as long as it is used; all else may be called from any task."""

    def __init__(self, name: str, server: McpServer, workspace: Path) -> None:
        self._name = name
        self._server = server
        self._workspace = workspace
        self._secrets: list[str] = []
        self._client: Client | None = None
        self._listed: list[Tool] | None = None
        self._problem = ""
        self._ready = asyncio.Event()  # There is a client, or there will be none any more.
        self._wanted = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_over = False
        self._hears = False

    def leave(self) -> bool:
        """Has `hold` end; False where it is only just connecting, and does not hear."""
        self._is_over = True
        self._lost.set()
        self._wanted.set()
        return self._hears

    async def hold(self) -> None:
        """Connects, keeps the connection until it is lost or `leave` is called, and connects anew when a lost one is wanted.

        Has to be entered and left in one task, as the SDK wants it. Raises nothing but CancelledError.
        """
        try:
            for _ in range(_MAX_STARTS):
                was_connected = await self._serve()
                if not was_connected or self._over():
                    return
                log.warning("mcp server lost", server=self._name)
                await self._wanted.wait()
                if self._over():
                    return
                self._hears = False
            self._problem = f"it ended {_MAX_STARTS} times, and is not started again in this run"
        finally:
            self._problem = self._problem or "it is no longer connected"
            self._ready.set()

    async def tools(self) -> list[Tool]:
        """What it said it has when it was first connected. Raises Unavailable."""
        await self._ready.wait()
        if self._listed is None:
            raise Unavailable(self._problem)
        return self._listed

    def shown(self, text: str, max_bytes: int) -> str:
        """A text of the server without secrets and without what is not meant to be seen, cut to the bytes."""
        return bounded(without_secrets(text, self._secrets), max_bytes)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """The result, as a model reads it. Raises ToolRefused for whatever is none."""
        client = await self._connected()
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        seconds = self._server.call_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                result = await client.session.send_request(request, CallToolResult)
        except TimeoutError:
            raise ToolRefused("MCP_TIMEOUT", f"no answer within {seconds:g} seconds; {_UNSURE}") from None
        except MCPError as error:
            if self._has_lost(client, error):
                raise ToolRefused("MCP_SERVER_LOST", f"the server ended during the call; {_UNSURE}") from None
            raise ToolRefused("MCP_ERROR", self.shown(error.message, _MAX_MESSAGE_BYTES)) from None
        except ValidationError:
            raise ToolRefused("MCP_MALFORMED_ANSWER", f"the server's answer is no tool result; {_UNSURE}") from None
        except Exception as error:  # noqa: BLE001 - whatever else the SDK raises is no failure of the run
            log.warning("mcp call failed", server=self._name, error=type(error).__name__)
            raise ToolRefused("MCP_ERROR", f"the call failed on its way; {_UNSURE}") from None
        text = result_text(result, secrets=self._secrets, max_bytes=self._server.max_result_bytes)
        if result.is_error:
            raise ToolRefused("MCP_TOOL_ERROR", text)
        return text

    async def _connected(self) -> Client:
        """The connection, made anew where it was lost. Raises ToolRefused."""
        if not self._ready.is_set():
            self._wanted.set()
            await self._ready.wait()
        if self._client is None:
            raise ToolRefused("MCP_SERVER_UNAVAILABLE", f"the call was not made: {self._problem}")
        return self._client

    def _over(self) -> bool:
        return self._is_over

    def _lose(self) -> None:
        """From now on whoever calls waits for a new connection, also while the old one is still being left."""
        if not self._is_over:
            self._client = None
            self._ready.clear()
        self._lost.set()

    def _has_lost(self, client: Client, error: MCPError) -> bool:
        """Whether the error is that of a connection that has ended. Servers use its code for errors of their own."""
        if client is not self._client:
            return True
        if error.code == CONNECTION_CLOSED and error.message.startswith(_ENDED):
            self._lose()
        return client is not self._client

    async def _serve(self) -> bool:
        """Connects, and keeps the connection until it is lost; False, with `_problem` set, where it did not come about."""
        was_connected = False
        try:
            async with asyncio.timeout(self._server.connect_timeout_seconds) as limit:
                streams = self._open()
                client_info = Implementation(name="spawnmesh", version="1")
                async with Client(streams, mode="auto", cache=None, client_info=client_info) as client:
                    listed = await _list(client)
                    self._listed = listed if self._listed is None else self._listed
                    limit.reschedule(None)
                    was_connected, self._client, self._hears = True, client, True
                    self._wanted.clear()
                    self._ready.set()
                    await self._lost.wait()
        except Exception as error:  # noqa: BLE001 - a server's failure is told to the model, and fails no run
            if not was_connected:
                self._problem = self._clause(error)
                log.warning("mcp server unavailable", server=self._name, why=self._problem, error=_types(error))
        finally:
            self._lose()
            if not self._is_over:
                self._lost.clear()
        return was_connected

    def _open(self) -> AbstractAsyncContextManager[Any]:
        server = self._server
        if server.url is not None:
            asked = {**server.headers, **({"Authorization": server.bearer_token} if server.bearer_token else {})}
            headers, self._secrets = resolved(asked)
            if server.bearer_token:
                headers["Authorization"] = f"Bearer {headers['Authorization']}"
            return open_address(
                server.url,
                headers,
                connect_seconds=server.connect_timeout_seconds,
                call_seconds=server.call_timeout_seconds,
            )
        assert server.command is not None
        env, self._secrets = resolved(server.env)
        home = self._workspace / ".mcp" / self._name
        return run_server(server.command, server.args, env, self._workspace, home, self._lose)

    def _clause(self, error: BaseException) -> str:
        kinds = {type(leaf) for leaf in _leaves(error)}
        if SecretMissing in kinds:
            return "a secret that its configuration refers to is missing"
        if TimeoutError in kinds:
            return f"it did not answer within {self._server.connect_timeout_seconds:g} seconds"
        if self._server.url is not None:
            return "it could not be reached, or did not answer as an MCP server does"
        if any(issubclass(kind, OSError) for kind in kinds):
            return "it could not be started"
        return "it ended, or did not answer as an MCP server does"


async def _list(client: Client) -> list[Tool]:
    """All tools that the server lists, up to a bound."""
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


def _types(error: BaseException) -> str:
    """What kinds of errors it was: their texts may hold anything."""
    return ", ".join(sorted({type(leaf).__name__ for leaf in _leaves(error)}))
