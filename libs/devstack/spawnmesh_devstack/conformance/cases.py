"""Cases as files contain them: the input and the expected outcome."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawnmesh_devstack.failures import StackError

REMARKS = frozenset({"case", "why", "note", "when"})
"""Members of `given` that are remarks for people and have no effect."""
_MEMBERS = {"id", "given", "expect", *REMARKS}


class BadCase(Exception):
    """A case that cannot be replayed. The text says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. Its parts are unchecked JSON values. `unknown` are the members of the case that no
    area knows.
    """

    case_id: str
    given: Any
    expect: Any
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case. `problem` is empty if the outcome is the expected one.

    `without_service` marks a case that no request can carry; the service's own rule judges it in
    this process.
    """

    problem: str = ""
    without_service: bool = False


def read_cases(file: Path) -> list[Case]:
    """Return the cases of a JSON file, in order. Raises StackError for a file that is not a list of
    objects.
    """
    try:
        listed = json.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise StackError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StackError(f"{file} is not JSON") from None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise StackError(f"{file} holds no list of cases")
    return [
        Case(
            str(item.get("id", f"#{place}")),
            item.get("given"),
            item.get("expect"),
            tuple(sorted(set(item) - _MEMBERS)),
        )
        for place, item in enumerate(listed, start=1)
    ]


def object_of(value: Any, what: str, known: Collection[str] = ()) -> Mapping[str, Any]:
    """Return the value if it is an object with no other members than these; without names, any
    members are allowed. Raises BadCase.
    """
    if not isinstance(value, dict):
        raise BadCase(f"{what} is no object")
    if known and (unknown := sorted(set(value) - set(known))):
        raise BadCase(f"{what} has what the replay does not know: {', '.join(map(ascii, unknown))}")
    return value


def list_of(value: Any, what: str) -> list[Any]:
    """Return the value if it is a list. Raises BadCase."""
    if not isinstance(value, list):
        raise BadCase(f"{what} is no list")
    return value


def text_of(value: Any, what: str) -> str:
    """Return the value if it is a string, and an empty string for null or an absent value, as on
    the wire. Raises BadCase.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadCase(f"{what} is no string")
    return value
