"""Compare an outcome with the expected one."""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh_devstack.conformance.cases import BadCase

_SHOWN_CHARS = 600


def difference(expect: Any, came: Mapping[str, Any]) -> str:
    """Return an empty string if the outcome has every member of the expectation, also inside of
    objects; otherwise both, as text. The outcome may have more members.

    Raises BadCase for an empty expectation.
    """
    if not isinstance(expect, dict) or not expect:
        raise BadCase("nothing is expected")
    if _holds(expect, came):
        return ""
    return f"came {shown(came)}, expected {shown(expect)}"


def shown(value: Any) -> str:
    """Return one line of printable ASCII, cut if it is long, so that no case can control a
    terminal.
    """
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"


def _holds(expected: Any, came: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(came, Mapping) and all(
            key in came and _holds(expected[key], came[key]) for key in expected
        )
    if isinstance(expected, list):
        return isinstance(came, list) and len(expected) == len(came) and all(map(_holds, expected, came))
    return type(expected) is type(came) and bool(expected == came)
