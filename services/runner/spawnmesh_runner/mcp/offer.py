"""Which of a server's tools a model is offered, under which names, and what is said of them."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import structlog
from mcp_types import Tool

from spawnmesh_runner.mcp.config import McpServer
from spawnmesh_runner.mcp.schema import UnusableSchema, checker, in_one_piece
from spawnmesh_runner.tools.tool import RemoteTool, Scope, mcp_prefix

log = structlog.get_logger()

MAX_DESCRIPTION_BYTES = 8 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # As every provider takes it.
_MAX_LOGGED_CHARACTERS = 80

Call = Callable[[str, dict[str, Any]], Awaitable[str]]
Shown = Callable[[str, int], str]


def offered(name: str, server: McpServer, listed: Iterable[Tool], call: Call, shown: Shown) -> list[RemoteTool]:
    """The listed tools that the operator lets through and that a model can be told of, in the server's order; the log says which are left out.

    `call` makes a call by the server's own name of the tool; `shown` makes a text of the server's fit to be read, cut to a number of bytes.
    """
    tools: dict[str, RemoteTool] = {}
    for one in listed:
        if server.tools is not None and one.name not in server.tools:
            continue
        full_name = mcp_prefix(name) + one.name
        try:
            if not one.name or not _NAME.fullmatch(full_name):
                raise UnusableSchema("its name is not one that providers take, 64 letters, digits, '_' and '-' in all")
            if full_name in tools:
                raise UnusableSchema("another one has its name")
            tools[full_name] = _tool(full_name, server, one, call, shown)
        except UnusableSchema as error:
            log.warning("mcp tool left out", server=name, tool=ascii(one.name[:_MAX_LOGGED_CHARACTERS]), why=str(error))
    if missing := set(server.tools or ()) - {one.name for one in listed}:
        log.warning("mcp tools missing", server=name, tools=sorted(missing))
    return list(tools.values())


def _tool(full_name: str, server: McpServer, one: Tool, call: Call, shown: Shown) -> RemoteTool:
    schema = in_one_piece(one.input_schema)
    parameters_json = json.dumps(schema)
    if shown(parameters_json, len(parameters_json) + 1) != parameters_json:
        raise UnusableSchema("its schema holds a secret of the configuration")
    hints = one.annotations
    may_repeat = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)

    async def run(_scope: Scope, arguments: dict[str, Any], *, own_name: str) -> str:
        return await call(own_name, arguments)

    return RemoteTool(
        name=full_name,
        description=shown(one.description or one.title or "", MAX_DESCRIPTION_BYTES),
        parameters_json=parameters_json,
        idempotent=server.trust_annotations and may_repeat,
        parse=checker(schema),
        run=partial(run, own_name=one.name),
    )
