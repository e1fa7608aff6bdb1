"""Compare an outcome with the expected one."""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh_devstack.conformance.cases import BadCase

_SHOWN_CHARS = 600


def difference(expect: Any, came: Mapping[str, Any]) -> str:
    """Return an empty string if the outcome has every member of the expectation, also inside of
    objects; otherwise both, as text. The outcome may have more members. A member `<name>_in` lists
    the values of which `<name>` must have one.

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
        return isinstance(came, Mapping) and all(_has(came, key, expected[key]) for key in expected)
    if isinstance(expected, list):
        return isinstance(came, list) and len(expected) == len(came) and all(map(_holds, expected, came))
    return type(expected) is type(came) and bool(expected == came)


def _has(came: Mapping[str, Any], key: str, expected: Any) -> bool:
    if key in came:
        return _holds(expected, came[key])
    name = key.removesuffix("_in")
    return isinstance(expected, list) and name in came and any(_holds(one, came[name]) for one in expected)
