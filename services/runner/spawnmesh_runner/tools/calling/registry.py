"""The built-in tools and their declarations for the model."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from spawnmesh.model_router.v1 import generation_pb2

from spawnmesh_runner.tools.ask_user import ASK_USER
from spawnmesh_runner.tools.calling.tool import AnyTool, RemoteTool, Tool
from spawnmesh_runner.tools.fetch_files import FETCH_FILES
from spawnmesh_runner.tools.list_files import LIST_FILES
from spawnmesh_runner.tools.publish_files import PUBLISH_FILES
from spawnmesh_runner.tools.read_file import READ_FILE
from spawnmesh_runner.tools.search_files import SEARCH_FILES
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN
from spawnmesh_runner.tools.sessions_wait import SESSIONS_WAIT
from spawnmesh_runner.tools.transcript_describe import TRANSCRIPT_DESCRIBE
from spawnmesh_runner.tools.transcript_search import TRANSCRIPT_SEARCH
from spawnmesh_runner.tools.write_file import WRITE_FILE

BUILT_IN: Mapping[str, Tool[Any]] = {
    tool.name: tool
    for tool in (
        LIST_FILES,
        READ_FILE,
        SEARCH_FILES,
        WRITE_FILE,
        PUBLISH_FILES,
        FETCH_FILES,
        SESSIONS_SPAWN,
        SESSIONS_WAIT,
        TRANSCRIPT_SEARCH,
        TRANSCRIPT_DESCRIBE,
        ASK_USER,
    )
}


def allowed(names: Iterable[str]) -> dict[str, AnyTool]:
    """Return the tools that an agent may call, in its profile's order.

    Unknown names are skipped.

    `transcript_search` brings `transcript_describe` with it, which reads its hits in long outputs.
    """
    tools: dict[str, AnyTool] = {name: BUILT_IN[name] for name in names if name in BUILT_IN}
    if TRANSCRIPT_SEARCH.name in tools:
        tools.setdefault(TRANSCRIPT_DESCRIBE.name, TRANSCRIPT_DESCRIBE)
    return tools


def declaration(tool: AnyTool) -> generation_pb2.ToolDeclaration:
    """Return the tool as the router passes it to providers."""
    parameters_json = tool.parameters_json if isinstance(tool, RemoteTool) else _parameters_json(tool)
    return generation_pb2.ToolDeclaration(
        name=tool.name, description=tool.description, parameters_json=parameters_json
    )


@cache  # Building the schema takes half a millisecond, and each turn needs it twice.
def _parameters_json(tool: Tool[Any]) -> str:
    return json.dumps(parameters_schema(tool))


def parameters_schema(tool: Tool[Any]) -> dict[str, object]:
    """Return the JSON Schema of the arguments with its references inlined.

    Some providers do not follow references.
    """
    schema = tool.arguments.model_json_schema()
    definitions = cast("dict[str, object]", schema.pop("$defs", {}))
    return cast("dict[str, object]", _inlined(schema, definitions))


def _inlined(node: object, definitions: Mapping[str, object]) -> object:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if reference := node.get("$ref"):
        return _inlined(definitions[str(reference).rpartition("/")[2]], definitions)
    # Pydantic's titles only repeat the names. A property named "title" is a schema, not a text.
    return {
        key: _inlined(value, definitions)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }
