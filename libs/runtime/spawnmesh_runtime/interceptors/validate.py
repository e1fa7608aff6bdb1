"""Check requests against the rules of their contract."""

import protovalidate
from google.protobuf.message import Message
from spawnmesh_core.errors import FieldViolation, MeshError
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
    violations = protovalidate.collect_violations(message)
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


def _path(field: protovalidate.FieldPathPb | None) -> str:
    return ".".join(_element(element) for element in field.elements) if field is not None else ""


def _element(element: protovalidate.FieldPathElementPb) -> str:
    if element.subscript is None:
        return element.field_name
    if element.subscript.field == "index":
        return f"{element.field_name}[{element.subscript.value}]"
    # The key of a map is a value of the caller and is not repeated.
    return f"{element.field_name}[]"
