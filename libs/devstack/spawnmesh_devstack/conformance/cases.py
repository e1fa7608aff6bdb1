"""Cases as their files hold them: what is given, and what is expected of it."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawnmesh_devstack.failures import StackError

REMARKS = frozenset({"case", "why", "note", "when"})
"""Members of `given` that speak to people and change nothing."""


class BadCase(Exception):
    """A case that cannot be replayed; the text says what about it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, its parts as JSON values that nobody has checked yet."""

    case_id: str
    given: Any
    expect: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the outcome is the expected one: `problem` is empty where it is.

    `without_service` marks a case that no request can carry, judged by the service's own rule in this process.
    """

    problem: str = ""
    without_service: bool = False


def read_cases(file: Path) -> list[Case]:
    """The cases of a JSON file, in their order. Raises StackError for a file that holds no list of objects."""
    try:
        listed = json.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise StackError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StackError(f"{file} is not JSON") from None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise StackError(f"{file} holds no list of cases")
    return [
        Case(str(item.get("id", f"#{place}")), item.get("given"), item.get("expect"))
        for place, item in enumerate(listed, start=1)
    ]


def object_of(value: Any, what: str, known: Collection[str] = ()) -> Mapping[str, Any]:
    """The value, if it is an object with no other members than these; any are let in where none is named. Raises BadCase."""
    if not isinstance(value, dict):
        raise BadCase(f"{what} is no object")
    if known and (unknown := sorted(set(value) - set(known))):
        raise BadCase(f"{what} has what the replay does not know: {', '.join(map(ascii, unknown))}")
    return value


def list_of(value: Any, what: str) -> list[Any]:
    """The value, if it is a list. Raises BadCase."""
    if not isinstance(value, list):
        raise BadCase(f"{what} is no list")
    return value


def text_of(value: Any, what: str) -> str:
    """The value, if it is a string; empty for null and what is absent, as on the wire. Raises BadCase."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadCase(f"{what} is no string")
    return value
