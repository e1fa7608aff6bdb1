"""Arguments of calls that wait for a person: readable, and valid if a person edited them."""

import json
from collections.abc import Mapping
from typing import Any

from spawnmesh_core.errors import invalid
from spawnmesh_runtime.argument_schemas import (
    ArgumentCheck,
    TooManySteps,
    UnusableSchema,
    inline_schema,
)

from spawnmesh_session.domain.approvals import ApprovalSubject

_MAX_CHECK_STEPS = 200_000
"""A check of edited arguments that takes more is given up after a fraction of a second."""


def require_readable(subject: ApprovalSubject) -> None:
    """Raise INVALID_REQUEST for arguments, or a schema, that are not what a decision needs."""
    if not subject.tool_name:
        return
    parse_arguments("tool_call.arguments_json", subject.arguments_json)
    _schema_of(subject, "tool_call.parameters_json")


def parse_arguments(field: str, text: str) -> dict[str, Any]:
    """Return the arguments. Raise INVALID_REQUEST unless they are one JSON object."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(field, "is not JSON") from None
    if not isinstance(arguments, dict):
        raise invalid(field, "is not a JSON object")
    return arguments


def _schema_of(subject: ApprovalSubject, field: str) -> Mapping[str, Any] | None:
    if not subject.parameters_json:
        return None
    try:
        return inline_schema(parse_arguments(field, subject.parameters_json))
    except UnusableSchema as error:
        raise invalid(field, str(error)) from None


def require_valid(subject: ApprovalSubject, arguments_json: str) -> None:
    """Raise INVALID_REQUEST unless edited arguments are what the tool of the call takes."""
    field = "approve.arguments_json"
    arguments = parse_arguments(field, arguments_json)
    schema = _schema_of(subject, field)
    if schema is None:
        return
    try:
        problems = ArgumentCheck(schema, max_steps=_MAX_CHECK_STEPS).problems(arguments)
    except (TooManySteps, RecursionError):
        raise invalid(field, "is too large to be checked against the schema of the tool") from None
    if problems:
        raise invalid(field, f"does not fit the tool {subject.tool_name}: {'; '.join(problems)}")
