"""Fit a model's answer into the transcript's limits: tool call ids, names and size."""

import hashlib
import json
from collections.abc import Iterator

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.call_arguments import LEFT_OUT, with_arguments
from spawnmesh_core.json_text import NotJson, parse_json

from spawnmesh_client.turn_messages import calls_of, map_calls

_MAX_BLOCKS = 256
_MAX_NAME_BYTES = 256  # It also limits a tool call id.
_TOO_MANY = (
    f"{LEFT_OUT}with this call the answer has as many calls as one may have;"
    " make it and those behind it in the next answer]"
)
_TOO_LARGE = f"{LEFT_OUT}nested too deep, or more values than can be stored]"


def fit_answer(answer: message_pb2.Message) -> message_pb2.Message:
    """Return the answer with a unique id for each call and no name that is too long.

    To its readers, a call with another id is another call. If there are too many calls, the first
    ones are kept. The last of these has a note in place of its arguments, and its tool refuses the
    call.
    """
    kept = message_pb2.Message()
    kept.CopyFrom(answer)
    if len(kept.content) > _MAX_BLOCKS:
        del kept.content[_MAX_BLOCKS:]
        for call in calls_of(kept)[-1:]:
            call.CopyFrom(_without_arguments(call, _TOO_MANY))
    used: set[str] = set()
    for call in calls_of(kept):
        _rename(call, _fit_id(call.tool_call_id, used), _fit_name(call.name))
        used.add(call.tool_call_id)
    return kept


def variants_with_fewer_arguments(answer: message_pb2.Message) -> Iterator[message_pb2.Message]:
    """Yield smaller variants of an answer that the transcript refuses.

    The first variant drops the arguments of calls that the transcript would not index, the second
    those of all calls. A note takes the place of the arguments, and every tool refuses it.
    """
    yield map_calls(answer, lambda call: call if _is_indexed(call) else _without_arguments(call, _TOO_LARGE))
    yield map_calls(answer, lambda call: _without_arguments(call, _TOO_LARGE))


def _is_indexed(call: message_pb2.ToolCall) -> bool:
    try:
        parse_json(call.block_json)
    except NotJson:
        return False
    return True


def _without_arguments(call: message_pb2.ToolCall, note: str) -> message_pb2.ToolCall:
    try:
        block_json = with_arguments(call.block_json, note)
        return message_pb2.ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=block_json)
    except (ValueError, RecursionError, AttributeError):
        block = {"type": "toolCall", "id": call.tool_call_id, "name": call.name, "arguments": note}
        return message_pb2.ToolCall(
            tool_call_id=call.tool_call_id, name=call.name, block_json=json.dumps(block)
        )


def _fit_id(call_id: str, used: set[str]) -> str:
    """Return the id, or one derived from it if the id is invalid or another call has it.

    Ids are compared without surrounding white space.
    """
    fit = call_id.strip()
    if not fit or "\0" in fit or len(fit.encode()) > _MAX_NAME_BYTES:
        fit = _derived_id(call_id)
    number = 1
    while fit in used:
        number += 1
        fit = _derived_id(f"{call_id} {number}")
    return fit


def _derived_id(text: str) -> str:
    return f"call_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _fit_name(name: str) -> str:
    return name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip() or "unnamed"


def _rename(call: message_pb2.ToolCall, call_id: str, name: str) -> None:
    """Rename the call, also in its block. A block that cannot be parsed stays as it is."""
    if (call_id, name) == (call.tool_call_id, call.name):
        return
    call.tool_call_id, call.name = call_id, name
    try:
        block = json.loads(call.block_json)
        call.block_json = json.dumps({**block, "id": call_id, "name": name})
    except (ValueError, RecursionError, TypeError):
        return
