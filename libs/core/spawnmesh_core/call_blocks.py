"""The JSON block in which the mesh keeps a tool call of most providers."""

import json
from typing import Final

from spawnmesh_core.json_text import member_spans

_SPACE: Final = " \t\n\r"  # The space of JSON.
_MEMBER_COUNT: Final = 4


def call_block(call_id: str, name: str, arguments_json: str) -> str:
    """Return the block of a call. `arguments_json` is one JSON value and stays as it is."""
    return f"{_before_arguments(call_id, name)}{arguments_json}}}"


def arguments_in(call_id: str, name: str, block_json: str) -> str:
    """Return the text of the arguments, byte for byte, if `call_block` wrote the block for this id
    and name.

    Return the complete block if it has any other shape, is not JSON, or is nested deeper than
    Python reads.
    """
    before = _before_arguments(call_id, name)
    if not (block_json.startswith(before) and block_json.endswith("}")):
        return block_json
    try:
        members = member_spans(block_json)
    except ValueError:
        return block_json
    _, _, end = members[-1]
    if len(members) != _MEMBER_COUNT or block_json[end:].strip(_SPACE) != "}":
        return block_json
    return block_json[len(before) : -1]


def _before_arguments(call_id: str, name: str) -> str:
    return f'{{"type":"toolCall","id":{json.dumps(call_id)},"name":{json.dumps(name)},"arguments":'
