"""The tools of an MCP server that a model is offered: their names, descriptions and schemas."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, cast

import structlog
from mcp_types import Tool
from spawnmesh_runtime.argument_schemas import ArgumentCheck, UnusableSchema, inline_schema

from spawnmesh_runner.clients.mcp.config import McpServer
from spawnmesh_runner.domain.tools import ToolRefused, mcp_prefix
from spawnmesh_runner.tools.calling.tool import CallScope, RemoteTool

log = structlog.get_logger()

MAX_DESCRIPTION_BYTES = 8 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # Every provider accepts such a name.
_MAX_LOGGED_CHARACTERS = 80

Call = Callable[[str, dict[str, Any]], Awaitable[str]]
Sanitize = Callable[[str, int], str]


def offer_tools(
    name: str, server: McpServer, listed: Iterable[Tool], call: Call, sanitize: Sanitize
) -> list[RemoteTool]:
    """Return the listed tools that the operator allows and a model can use.

    The tools keep the server's order. The log names the others.

    `call` makes a call by the server's own name of the tool. `sanitize` removes secrets and
    invisible characters from a server's text, and cuts it to a number of bytes.
    """
    tools: dict[str, RemoteTool] = {}
    for one in listed:
        if server.tools is not None and one.name not in server.tools:
            continue
        full_name = mcp_prefix(name) + one.name
        try:
            if not one.name or not _NAME.fullmatch(full_name):
                raise UnusableSchema(
                    "its name is not one that providers take, 64 letters, digits, '_' and '-' in all"
                )
            if full_name in tools:
                raise UnusableSchema("another one has its name")
            tools[full_name] = _tool(full_name, server, one, call, sanitize)
        except UnusableSchema as error:
            log.warning(
                "mcp_tool_left_out",
                server=name,
                tool=ascii(one.name[:_MAX_LOGGED_CHARACTERS]),
                why=str(error),
            )
    if missing := set(server.tools or ()) - {one.name for one in listed}:
        log.warning("mcp_tools_missing", server=name, tools=sorted(missing))
    return list(tools.values())


def _tool(full_name: str, server: McpServer, one: Tool, call: Call, sanitize: Sanitize) -> RemoteTool:
    schema = inline_schema(one.input_schema)
    parameters_json = json.dumps(schema)
    if sanitize(parameters_json, len(parameters_json) + 1) != parameters_json:
        raise UnusableSchema("its schema holds a secret of the configuration")
    hints = one.annotations if server.trust_annotations else None
    may_repeat = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
    is_harmless = hints is not None and (hints.read_only_hint is True or hints.destructive_hint is False)
    check = ArgumentCheck(schema)

    def parse(arguments: object) -> dict[str, Any]:
        if problems := check.problems(arguments):
            raise ToolRefused("INVALID_ARGUMENTS", "; ".join(problems))
        return cast("dict[str, Any]", arguments)

    async def execute(_scope: CallScope, arguments: dict[str, Any], *, own_name: str) -> str:
        return await call(own_name, arguments)

    return RemoteTool(
        name=full_name,
        description=sanitize(one.description or one.title or "", MAX_DESCRIPTION_BYTES),
        parameters_json=parameters_json,
        idempotent=may_repeat,
        is_destructive=not is_harmless,
        parse=parse,
        execute=partial(execute, own_name=one.name),
    )
