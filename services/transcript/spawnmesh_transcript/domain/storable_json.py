"""Limits on JSON texts that are appended: they parse, and a session file can bring them back."""

import json
import re

from spawnmesh_core.json_text import MAX_DEPTH, NotJson, require_few_nodes

LEVELS_OF_LINES = 6
"""In a session file a text stands up to five levels down in its line, and a marker in it is one
more.
"""

MAX_STORED_DEPTH = MAX_DEPTH - LEVELS_OF_LINES
"""Largest depth of objects and lists in an appended text: imports read MAX_DEPTH."""

_STRING_OR_BRACKET = re.compile(
    r'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL
)  # Possessive: a string has megabytes.
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def require_json(text: str, *, is_object: bool) -> None:
    """Raise NotJson for a text that is not one JSON value or is too deep to be imported again,
    and TooManyNodes.

    If `is_object` is set, the value must be an object.
    """
    require_few_nodes(text)
    try:
        value = json.loads(
            text, strict=False, parse_int=len
        )  # A number's value is not needed, and Python refuses to read very long ones.
    except (ValueError, RecursionError) as error:
        raise NotJson("not JSON") from error
    if is_object and not isinstance(value, dict):
        raise NotJson("not an object")
    require_storable_depth(text)


def require_storable_depth(text: str) -> None:
    """Raise NotJson for a JSON text that is too deep to be imported again."""
    if sum(map(text.count, "[{")) <= MAX_STORED_DEPTH:
        return
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        depth += _STEPS.get(found.group(), 0)
        if depth > MAX_STORED_DEPTH:
            raise NotJson("nested too deep")
