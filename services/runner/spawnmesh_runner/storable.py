"""An answer of a model as the transcript takes it: no two calls of one id, and none beyond its bounds."""

import hashlib
import json
from collections.abc import Callable, Iterator

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.json_text import NotJson, parse_json

from spawnmesh_runner.context import calls_of
from spawnmesh_runner.tools.call import LEFT_OUT, call_with

_MAX_BLOCKS = 256
_MAX_NAME_BYTES = 256  # Also of an id.
_TOO_MANY = (
    f"{LEFT_OUT}with this call the answer has as many as one may have; make it and those behind it in the next one]"
)
_TOO_LARGE = f"{LEFT_OUT}nested too deep, or more values than can be stored]"


def storable(answer: message_pb2.Message) -> message_pb2.Message:
    """The answer, where each call has an id of its own and no name is too long. A call with another id is another call to whoever reads it.

    Of calls that are too many the first ones are left, and the last of these says so in place of its arguments, which its tool refuses.
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


def with_fewer_arguments(answer: message_pb2.Message) -> Iterator[message_pb2.Message]:
    """An answer that the transcript refuses, without the arguments of those calls that it would not search, and then without those of any.

    What stands in their place says so, and every tool refuses it.
    """
    yield _with_calls(answer, lambda call: call if _is_searched(call) else _without_arguments(call, _TOO_LARGE))
    yield _with_calls(answer, lambda call: _without_arguments(call, _TOO_LARGE))


def _with_calls(
    answer: message_pb2.Message, kept: Callable[[message_pb2.ToolCall], message_pb2.ToolCall]
) -> message_pb2.Message:
    less = message_pb2.Message()
    less.CopyFrom(answer)
    for call in calls_of(less):
        call.CopyFrom(kept(call))
    return less


def _is_searched(call: message_pb2.ToolCall) -> bool:
    try:
        parse_json(call.block_json)
    except NotJson:
        return False
    return True


def _without_arguments(call: message_pb2.ToolCall, instead: str) -> message_pb2.ToolCall:
    try:
        return call_with(call, instead)
    except (ValueError, RecursionError, AttributeError):
        block = {"type": "toolCall", "id": call.tool_call_id, "name": call.name, "arguments": instead}
        return message_pb2.ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=json.dumps(block))


def _fit_id(call_id: str, used: set[str]) -> str:
    """The id, or one that is made of it where another call has it or none may; ids are compared without space around them."""
    fit = call_id.strip()
    if not fit or "\0" in fit or len(fit.encode()) > _MAX_NAME_BYTES:
        fit = _made_of(call_id)
    number = 1
    while fit in used:
        number += 1
        fit = _made_of(f"{call_id} {number}")
    return fit


def _made_of(text: str) -> str:
    return f"call_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _fit_name(name: str) -> str:
    return name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip() or "unnamed"


def _rename(call: message_pb2.ToolCall, call_id: str, name: str) -> None:
    """Also in the call's block; one that nobody can read stays as it is."""
    if (call_id, name) == (call.tool_call_id, call.name):
        return
    call.tool_call_id, call.name = call_id, name
    try:
        block = json.loads(call.block_json)
        call.block_json = json.dumps({**block, "id": call_id, "name": name})
    except (ValueError, RecursionError, TypeError):
        return
