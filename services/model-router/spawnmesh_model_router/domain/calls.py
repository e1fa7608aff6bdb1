"""Tool calls between the shapes of providers and the one block that the mesh keeps."""

import hashlib
import json
import re
import sys
from typing import Any, Final

from spawnmesh_model_router.domain.unicode import mended

_PORTABLE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_HALF: Final = re.compile(r"\\u[dD][89A-Fa-f]")
"""Half a character as JSON spells it."""


def call_block(call_id: str, name: str, arguments: str) -> str:
    """The call as one JSON object of type `toolCall`.

    `arguments` is what the model wrote: kept as it is where it is JSON, as a string where it is not; nothing at all means `{}`.
    """
    written = arguments.strip() or "{}"
    value = written if _is_json(written) else json.dumps(arguments)
    return f'{{"type":"toolCall","id":{json.dumps(call_id)},"name":{json.dumps(name)},"arguments":{value}}}'


def is_whole(arguments: str) -> bool:
    """Whether a model that was stopped has written the arguments to their end. Nothing at all is no end."""
    return isinstance(decoded(arguments), dict)


def arguments_of(block_json: str) -> Any:
    """The arguments in a block of any provider's shape; a string is decoded where it is JSON. None for a block that is no object."""
    block = decoded(block_json)
    if not isinstance(block, dict):
        return None
    given: Any = next((block[key] for key in ("arguments", "input", "args") if key in block), {})
    if not isinstance(given, str):
        return given
    return decoded(given) if _is_json(given) else given


def portable_id(call_id: str) -> str:
    """The id itself where every provider takes it, else one derived from it: always the same, so that call and result stay a pair."""
    if _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"


def _is_json(text: str) -> bool:
    return text.strip() == "null" or decoded(text) is not None


def decoded(text: str) -> Any:
    """What the JSON text says, in a form that can be sent; None for what is not JSON, with `NaN` and its like, or is nested beyond reason."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _HALF.search(text):
            value = json.loads(mended(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(written: str) -> float:
    """The number, or the nearest one there is: what is read as infinite could not be written again."""
    return min(max(float(written), -sys.float_info.max), sys.float_info.max)
