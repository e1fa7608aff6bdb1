"""The arguments of a tool call, in the forms in which providers write them."""

import json
import re
from collections.abc import Mapping

from spawnmesh.content.v1 import message_pb2

from spawnmesh_runner.domain.tools import ToolRefused

LEFT_OUT = "[left out: "
"""The prefix of a note in place of arguments. It is not JSON, so no tool accepts it."""

# A string that is nothing but the note in place of a text that a context left out.
_LEFT_OUT_TEXT = re.compile(r"\[Left out: file_[0-9a-z_]+ \| [0-9,]+ bytes\.[^\[\]]*\]")
# The keys under which providers put the arguments in a block.
_ARGUMENT_KEYS = ("arguments", "input", "args")
# The transcript writes it in place of a masked secret and of a file's content.
_REDACTED = "$redacted"


def call_arguments(call: message_pb2.ToolCall) -> object:
    """Return the arguments of a call, from `arguments`, `input` or `args`.

    Each may be an object, or JSON in a string. Raises ToolRefused, also for a note in place of a
    text: a model that sees its earlier calls with notes may write one, and no file is to have it.
    """
    try:
        block = json.loads(call.block_json)
        arguments = block.get(_argument_key(block), {}) if isinstance(block, dict) else None
        if isinstance(arguments, str) and arguments.startswith(LEFT_OUT):
            raise ToolRefused("INVALID_ARGUMENTS", f"the arguments are {arguments.strip('[]')}")
        parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise ToolRefused("INVALID_ARGUMENTS", "the arguments are not JSON that can be read") from error
    if _LEFT_OUT_TEXT.search(call.block_json) and _has_note(parsed):
        raise ToolRefused(
            "INVALID_ARGUMENTS",
            "an argument is a note in place of a text; give the text itself: transcript_describe reads it",
        )
    return {} if parsed is None else parsed


def _has_note(value: object) -> bool:
    if isinstance(value, str):
        return _LEFT_OUT_TEXT.fullmatch(value.strip()) is not None
    if isinstance(value, Mapping):
        return any(map(_has_note, value.values()))
    return isinstance(value, list) and any(map(_has_note, value))


def replace_arguments(call: message_pb2.ToolCall, arguments: object, **more: object) -> message_pb2.ToolCall:
    """Return the call in the same form, with other arguments and with `more` in its block.

    An object of arguments is written as text if the call's own was. A text is written as it is. The
    block must be a JSON object.
    """
    block = json.loads(call.block_json)
    key = _argument_key(block)
    is_text = isinstance(block.get(key), str) and not isinstance(arguments, str)
    kept = {name: value for name, value in block.items() if name not in _ARGUMENT_KEYS}
    made = {**kept, key: json.dumps(arguments) if is_text else arguments, **more}
    return message_pb2.ToolCall(tool_call_id=call.tool_call_id, name=call.name, block_json=json.dumps(made))


def is_unredacted(call: message_pb2.ToolCall) -> bool:
    """Return True if the stored call has no redaction, so that it can be made again from it."""
    return _REDACTED not in call.block_json


def _argument_key(block: Mapping[str, object]) -> str:
    return next((key for key in _ARGUMENT_KEYS if key in block), _ARGUMENT_KEYS[0])
