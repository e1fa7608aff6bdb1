"""The arguments of a tool call in its JSON block, in the forms in which providers write them."""

import json
import re
from collections.abc import Mapping

LEFT_OUT = "[left out: "
"""The prefix of a note in place of arguments. It is not JSON, so no tool accepts it."""

# A string that is nothing but the note in place of a text that a context left out.
_LEFT_OUT_TEXT = re.compile(r"\[Left out: file_[0-9a-z_]+ \| [0-9,]+ bytes\.[^\[\]]*\]")
# The keys under which providers put the arguments in a block.
_ARGUMENT_KEYS = ("arguments", "input", "args")
# The transcript writes it in place of a masked secret and of a file's content.
_REDACTED = "$redacted"


class ArgumentsUnreadable(ValueError):
    """The arguments of a call cannot be read. The text says why, for a model."""


def arguments_of(block_json: str) -> object:
    """Return the arguments of a call, from `arguments`, `input` or `args` of its block.

    Each may be an object, or JSON in a string. Raises ArgumentsUnreadable, also for a note in place
    of a text: a model that sees its earlier calls with notes may write one, and no file is to have
    it.
    """
    try:
        block = json.loads(block_json)
        arguments = block.get(_argument_key(block), {}) if isinstance(block, dict) else None
        if isinstance(arguments, str) and arguments.startswith(LEFT_OUT):
            raise ArgumentsUnreadable(f"the arguments are {arguments.strip('[]')}")
        parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ArgumentsUnreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise ArgumentsUnreadable("the arguments are not JSON that can be read") from error
    if _LEFT_OUT_TEXT.search(block_json) and _has_note(parsed):
        raise ArgumentsUnreadable(
            "an argument is a note in place of a text; give the text itself: transcript_describe reads it"
        )
    return {} if parsed is None else parsed


def given_arguments(block_json: str) -> object:
    """Return the arguments of a call as they are in its block, with notes and markers.

    A text that is no JSON stays a text. Return None for a block without arguments that can be read.
    """
    try:
        block = json.loads(block_json)
    except ValueError:
        return None
    arguments = block.get(_argument_key(block), {}) if isinstance(block, dict) else None
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def with_arguments(block_json: str, arguments: object, **more: object) -> str:
    """Return the block in the same form, with other arguments and with `more` in it.

    An object of arguments is written as text if the block's own was. A text is written as it is.
    The block must be a JSON object.
    """
    block = json.loads(block_json)
    key = _argument_key(block)
    is_text = isinstance(block.get(key), str) and not isinstance(arguments, str)
    kept = {name: value for name, value in block.items() if name not in _ARGUMENT_KEYS}
    return json.dumps({**kept, key: json.dumps(arguments) if is_text else arguments, **more})


def is_unredacted(block_json: str) -> bool:
    """Return True if a stored block has no redaction, so that its call can be made from it."""
    return _REDACTED not in block_json


def _has_note(value: object) -> bool:
    if isinstance(value, str):
        return _LEFT_OUT_TEXT.fullmatch(value.strip()) is not None
    if isinstance(value, Mapping):
        return any(map(_has_note, value.values()))
    return isinstance(value, list) and any(map(_has_note, value))


def _argument_key(block: Mapping[str, object]) -> str:
    return next((key for key in _ARGUMENT_KEYS if key in block), _ARGUMENT_KEYS[0])
