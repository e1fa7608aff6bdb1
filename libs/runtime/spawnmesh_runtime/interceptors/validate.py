"""Check requests against the rules of their contract."""

import protovalidate
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.interceptors.read import Decode

_SHOWN = 20


def decode_valid(decode: Decode) -> Decode:
    """Return a decoder that also checks each message."""

    def decode_and_check(data: bytes) -> Message:
        message: Message = decode(data)
        require_valid(message)
        return message

    return decode_and_check


def require_valid(message: Message) -> None:
    """Raise MeshError INVALID_REQUEST if the message breaks a rule.

    The error has the paths of at most 20 fields and no values.
    """
    try:
        violations = protovalidate.collect_violations(message)
    except protovalidate.EvaluationError:
        # Rules cannot be applied to a duration or a time that the type does not allow.
        if (path := _impossible_time(message)) is None:
            raise
        raise invalid(path, "is no valid duration or time") from None
    if not violations:
        return
    shown = tuple(
        FieldViolation(_path(found.proto.field), found.proto.message or "breaks a rule")
        for found in violations[:_SHOWN]
    )
    more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
    raise MeshError(
        Reason.INVALID_REQUEST,
        f"{shown[0].field or 'request'}: {shown[0].description}{more}",
        violations=shown,
    )


def _impossible_time(message: Message) -> str | None:
    """Return the path of the first Duration or Timestamp that is out of range or denormal."""
    if isinstance(message, Duration | Timestamp):
        try:
            message.ToNanoseconds()
            message.ToJsonString()
        except (ValueError, OverflowError):
            return ""
        return None
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            members = list(value.values()) if field.message_type.fields_by_name["value"].message_type else []
        else:
            members = list(value) if field.is_repeated else [value]
        for member in members:
            if (inner := _impossible_time(member)) is not None:
                return f"{field.name}.{inner}".rstrip(".")
    return None


def _path(field: protovalidate.FieldPathPb | None) -> str:
    return ".".join(_element(element) for element in field.elements) if field is not None else ""


def _element(element: protovalidate.FieldPathElementPb) -> str:
    if element.subscript is None:
        return element.field_name
    if element.subscript.field == "index":
        return f"{element.field_name}[{element.subscript.value}]"
    # The key of a map is a value of the caller and is not repeated.
    return f"{element.field_name}[]"
