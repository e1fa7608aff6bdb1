"""Tool calls between the shapes of providers and the one block that the mesh keeps."""

import hashlib
import json
import re
from typing import Any, Final

_PORTABLE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def call_block(call_id: str, name: str, arguments: str) -> str:
    """The call as one JSON object of type `toolCall`.

    `arguments` is what the model wrote: kept as it is where it is JSON, as a string where it is not; nothing at all means `{}`.
    """
    written = arguments.strip() or "{}"
    value = written if _is_json(written) else json.dumps(arguments)
    return f'{{"type":"toolCall","id":{json.dumps(call_id)},"name":{json.dumps(name)},"arguments":{value}}}'


def arguments_of(block_json: str) -> Any:
    """The arguments in a block of any provider's shape; a string is decoded where it is JSON. None for a block that is no object."""
    block = _decoded(block_json)
    if not isinstance(block, dict):
        return None
    given: Any = next((block[key] for key in ("arguments", "input", "args") if key in block), {})
    if not isinstance(given, str):
        return given
    return _decoded(given) if _is_json(given) else given


def portable_id(call_id: str) -> str:
    """The id itself where every provider takes it, else one derived from it: always the same, so that call and result stay a pair."""
    if _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"


def _is_json(text: str) -> bool:
    return text.strip() == "null" or _decoded(text) is not None


def _decoded(text: str) -> Any:
    """None for what is not JSON, with `NaN` and its like, or is nested beyond reason."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
