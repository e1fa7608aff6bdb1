"""Compares what came with what was expected."""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh_devstack.conformance.cases import BadCase

_SHOWN_CHARS = 600


def difference(expect: Any, came: Mapping[str, Any]) -> str:
    """Empty where every member of the expectation came, also inside of objects; else both, for people. More may have come.

    Raises BadCase for an expectation that expects nothing.
    """
    if not isinstance(expect, dict) or not expect:
        raise BadCase("nothing is expected")
    if _holds(expect, came):
        return ""
    return f"came {shown(came)}, expected {shown(expect)}"


def shown(value: Any) -> str:
    """One line of printable ASCII, so that nothing in a case can act on a terminal; cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"


def _holds(expected: Any, came: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(came, Mapping) and all(key in came and _holds(expected[key], came[key]) for key in expected)
    if isinstance(expected, list):
        return isinstance(came, list) and len(expected) == len(came) and all(map(_holds, expected, came))
    return type(expected) is type(came) and bool(expected == came)
