"""The rules of a request that its contract states for single fields, as services check them."""

import re
from collections.abc import Iterator
from typing import Any

from buf.validate import validate_pb2 as validate_module
from google.protobuf.message import Message
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

_RULES: Any = vars(validate_module)["field"]  # The generated types leave extensions out.


def require_valid(message: Message) -> None:
    """Raise InvalidRequest with the fields that break a rule.

    Rules over several fields are not checked.
    """
    violations = tuple(_violations(message, ""))
    if violations:
        first = violations[0]
        raise MeshError(Reason.INVALID_REQUEST, f"{first.field}: {first.description}", violations=violations)


def _violations(message: Message, path: str) -> Iterator[FieldViolation]:
    for field in message.DESCRIPTOR.fields:
        rules = field.GetOptions().Extensions[_RULES]
        name = f"{path}{field.name}"
        value = getattr(message, field.name)
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            yield from _of_list(name, value, rules.repeated)
            for index, item in enumerate(value):
                yield from _of_value(f"{name}[{index}]", item, field, rules.repeated.items)
        elif field.has_presence and not message.HasField(field.name):
            if rules.required:
                yield FieldViolation(name, "is required")
        else:
            yield from _of_value(name, value, field, rules)


def _of_list(name: str, items: Any, rules: Any) -> Iterator[FieldViolation]:
    if len(items) < rules.min_items:
        yield FieldViolation(name, f"must have at least {rules.min_items} items")
    if rules.HasField("max_items") and len(items) > rules.max_items:
        yield FieldViolation(name, f"must have at most {rules.max_items} items")
    if rules.unique and len(set(items)) < len(items):
        yield FieldViolation(name, "must have no item twice")


def _of_value(name: str, value: Any, field: Any, rules: Any) -> Iterator[FieldViolation]:
    if isinstance(value, str):
        yield from (FieldViolation(name, text) for text in _of_string(value, rules.string))
    elif isinstance(value, Message):
        if value.DESCRIPTOR.full_name == "google.protobuf.Duration":
            yield from (FieldViolation(name, text) for text in _of_duration(value, rules.duration))
        elif not value.DESCRIPTOR.full_name.startswith("google.protobuf."):
            yield from _violations(value, f"{name}.")
    elif field.enum_type is not None:
        if rules.enum.defined_only and value not in field.enum_type.values_by_number:
            yield FieldViolation(name, "must be a known value")
        if value in rules.enum.not_in:
            yield FieldViolation(name, f"must not be {value}")
    elif rules.WhichOneof("type") in ("int32", "int64"):
        numbers = getattr(rules, rules.WhichOneof("type"))
        yield from (FieldViolation(name, text) for text in _of_number(value, numbers))


def _of_string(value: str, rules: Any) -> Iterator[str]:
    if len(value) < rules.min_len:
        yield f"must have at least {rules.min_len} characters"
    if rules.HasField("len") and len(value) != rules.len:
        yield f"must have {rules.len} characters"
    if rules.HasField("max_bytes") and len(value.encode()) > rules.max_bytes:
        yield f"must have at most {rules.max_bytes} bytes"
    if rules.HasField("prefix") and not value.startswith(rules.prefix):
        yield f"must begin with {rules.prefix}"
    if rules.HasField("pattern") and not re.search(rules.pattern, value):
        yield f"must match {rules.pattern}"


def _of_number(value: int, rules: Any) -> Iterator[str]:
    if rules.HasField("gte") and value < rules.gte:
        yield f"must be at least {rules.gte}"
    if rules.HasField("lte") and value > rules.lte:
        yield f"must be at most {rules.lte}"


def _of_duration(value: Any, rules: Any) -> Iterator[str]:
    nanoseconds = value.ToNanoseconds()
    if rules.HasField("gt") and nanoseconds <= rules.gt.ToNanoseconds():
        yield f"must be longer than {rules.gt.ToJsonString()}"
    if rules.HasField("gte") and nanoseconds < rules.gte.ToNanoseconds():
        yield f"must be at least {rules.gte.ToJsonString()}"
    if rules.HasField("lte") and nanoseconds > rules.lte.ToNanoseconds():
        yield f"must be at most {rules.lte.ToJsonString()}"
