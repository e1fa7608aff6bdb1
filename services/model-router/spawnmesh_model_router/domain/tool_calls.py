"""Convert tool calls between the formats of providers and the JSON block that the mesh stores."""

import hashlib
import json
import re
import sys
from typing import Any, Final

from spawnmesh_core.call_blocks import call_block

from spawnmesh_model_router.domain.unicode import repair_surrogates

_PORTABLE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SURROGATE: Final = re.compile(r"\\u[dD][89A-Fa-f]")
"""A surrogate as JSON spells it."""


def tool_call_block(call_id: str, name: str, arguments: str) -> str:
    """Return the call as a JSON object of type `toolCall`.

    Arguments that are JSON stay as the model wrote them. Other text becomes a JSON string, and an
    empty text becomes `{}`.
    """
    written = arguments.strip() or "{}"
    value = written if _is_json(written) else json.dumps(arguments)
    return call_block(call_id, name, value)


def is_complete(arguments: str) -> bool:
    """Return whether the arguments are complete. Empty arguments of a stopped model are not."""
    return isinstance(decode_json(arguments), dict)


def parse_arguments(block_json: str) -> Any:
    """Return the arguments of a block in any provider's format; None if the block is no JSON
    object.

    Arguments in a string are decoded if the string is JSON.
    """
    given = given_arguments(block_json)
    if not isinstance(given, str):
        return given
    return decode_json(given) if _is_json(given) else given


def given_arguments(block_json: str) -> Any:
    """Return the arguments of a block as they are in it, which may be JSON in a string."""
    block = decode_json(block_json)
    if not isinstance(block, dict):
        return None
    return next((block[key] for key in ("arguments", "input", "args") if key in block), {})


def portable_id(call_id: str) -> str:
    """Return the id if every provider accepts it, otherwise an id derived from it.

    The derived id is always the same, so a call and its result still match.
    """
    if _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"


def _is_json(text: str) -> bool:
    return text.strip() == "null" or decode_json(text) is not None


def decode_json(text: str) -> Any:
    """Decode JSON into a value that can be sent again.

    Return None for text that is not JSON, contains `NaN` or an infinity, or is nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _SURROGATE.search(text):
            value = json.loads(repair_surrogates(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(written: str) -> float:
    """Return the number, limited to the finite range: an infinity cannot be encoded again."""
    return min(max(float(written), -sys.float_info.max), sys.float_info.max)
