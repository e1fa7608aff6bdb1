"""Read the JSON of a request within bounds: the schemas of its tools, and its tool calls."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spawnmesh_core.json_text import count_nodes

from spawnmesh_model_router.domain.tool_calls import decode_json, given_arguments

MAX_JSON_VALUES: Final = 100_000
"""The most values in the schemas and the tool calls of one request: 25 MiB when they are decoded.

A model writes about one token for each value, and real schemas have some hundred.
"""

# A string in JSON can hold JSON, in which each of these characters may be an escape.
_BEFORE_VALUES: Final = (",", "[", "{", "\\u")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The JSON Schema of a tool's parameters, and its size as JSON."""

    parameters: dict[str, Any]
    size_bytes: int


def read_schemas(schemas: Sequence[str], blocks: Sequence[str]) -> list[ToolSchema | None]:
    """Return the schemas of the tools; None for each one that is not a JSON object.

    Raises TooManyNodes if they and the blocks of the tool calls have more than MAX_JSON_VALUES
    values. Those are counted before any is decoded.
    """
    _require_few_values(schemas, blocks)
    return [_schema_of(decode_json(schema)) for schema in schemas]


def _schema_of(parameters: Any) -> ToolSchema | None:
    if not isinstance(parameters, dict):
        return None
    try:
        text = json.dumps(parameters, ensure_ascii=False)
    except RecursionError:  # It was just not too deep to be decoded.
        return None
    return ToolSchema(parameters, len(text.encode()))


def _require_few_values(schemas: Sequence[str], blocks: Sequence[str]) -> None:
    if sum(map(_most_values, (*schemas, *blocks))) <= MAX_JSON_VALUES:
        return
    left = MAX_JSON_VALUES
    for text in schemas:
        left -= count_nodes(text, left)
    for block in blocks:
        left -= count_nodes(block, left)
        for text in _json_in(block):
            left -= count_nodes(text, left)


def _most_values(text: str) -> int:
    """Return at least the number of values, those of JSON in its strings included."""
    return 1 + sum(map(text.count, _BEFORE_VALUES))


def _json_in(block: str) -> Iterable[str]:
    """Return the arguments of a tool call if they are a string that may have several values."""
    arguments = given_arguments(block)
    is_json = isinstance(arguments, str) and arguments.lstrip(" \t\n\r").startswith(("[", "{"))
    return (arguments,) if is_json else ()
