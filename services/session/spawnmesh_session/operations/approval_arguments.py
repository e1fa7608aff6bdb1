"""Arguments of calls that wait for a person: one JSON object, and valid if a person edited them."""

import json
from typing import Any

from spawnmesh_core.errors import invalid
from spawnmesh_runtime.argument_schemas import ArgumentCheck, UnusableSchema, inline_schema

from spawnmesh_session.domain.approvals import ApprovalSubject


def require_object(field: str, text: str) -> dict[str, Any]:
    """Return the arguments. Raise INVALID_REQUEST unless they are one JSON object.

    A key that comes twice is refused: the person might read the one and the tool the other.
    """
    try:
        arguments = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _Ambiguous as error:
        raise invalid(field, str(error)) from None
    except (ValueError, RecursionError):
        raise invalid(field, "is not JSON") from None
    if not isinstance(arguments, dict):
        raise invalid(field, "is not a JSON object")
    return arguments


def require_valid(subject: ApprovalSubject, arguments_json: str) -> None:
    """Raise INVALID_REQUEST unless edited arguments are what the tool of the call takes.

    The schema and the arguments can be made to take long: call this in a worker process.
    """
    field = "approve.arguments_json"
    arguments = require_object(field, arguments_json)
    if not subject.parameters_json:
        return
    try:
        schema = inline_schema(require_object("tool_call.parameters_json", subject.parameters_json))
        problems = ArgumentCheck(schema).problems(arguments)
    except UnusableSchema as error:
        raise invalid(field, f"cannot be checked: {error}") from None
    except RecursionError:
        raise invalid(field, "is nested too deep") from None
    if problems:
        raise invalid(field, f"does not fit the tool {subject.tool_name}: {'; '.join(problems)}")


class _Ambiguous(Exception):
    """The text has no single meaning."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Ambiguous("has a key twice")
    return found


def _refuse_constant(name: str) -> None:
    raise _Ambiguous(f"has {name}, which is not JSON")
