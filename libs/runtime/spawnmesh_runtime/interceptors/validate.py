"""Check requests against the rules of their contract."""

import protovalidate
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh_core.errors import FieldViolation, MeshError, invalid
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import Call
from spawnmesh_runtime.interceptors.read import NO_MESSAGE, Decode
from spawnmesh_runtime.wire_elements import MalformedWire, count_elements, shape_of

MAX_ELEMENTS = 200_000
"""The most fields that a message has on the wire, those of messages in it included.

An append of 256 entries with 256 texts each has 197,377. 40,000 messages of Generate with one text
each have 200,000. The decoded message takes some ten MiB, and less than a second to check.
"""

COUNTED_BYTES = 64 * 1024
"""A message of this size or less has too few elements to be refused for them."""

CHARGED_BYTES = 128
"""A message of this size or less has too few elements to cost more than a call."""

LISTED_ELEMENTS, LISTED_BYTES = 64, 4 * 1024
"""The error of a message with more elements or bytes has the first violation alone: each takes some
tens of microseconds and about 3 KiB.
"""

_SHOWN = 20


def decode_valid(decode: Decode, kind: Descriptor) -> Decode:
    """Return a decoder that also checks each message, and first counts its elements, for which the
    caller has a rate.
    """
    shape = shape_of(kind)

    def decode_and_check(data: bytes, call: Call) -> Message:
        meter, count = call.request_bytes, 0
        if len(data) > (COUNTED_BYTES if meter is None else CHARGED_BYTES):
            try:
                count = count_elements(data, shape, most=MAX_ELEMENTS)
            except MalformedWire as malformed:
                if meter is not None:
                    meter.count_fields(malformed.count)
                raise invalid("request", NO_MESSAGE) from None
            if meter is not None:
                meter.count_fields(count)
            if count > MAX_ELEMENTS:
                raise _too_many_elements()
        message: Message = decode(data, call)
        require_valid(message, first_alone=count > LISTED_ELEMENTS or len(data) > LISTED_BYTES)
        return message

    return decode_and_check


def _too_many_elements() -> MeshError:
    violation = FieldViolation(
        "request", f"has more than {MAX_ELEMENTS} fields, those of the messages in it included"
    )
    return MeshError(
        Reason.INVALID_REQUEST,
        f"{violation.field}: {violation.description}; send it in smaller parts",
        violations=(violation,),
        facts={"max_element_count": MAX_ELEMENTS},
    )


def require_valid(message: Message, *, first_alone: bool = False) -> None:
    """Raise MeshError INVALID_REQUEST if the message breaks a rule.

    The error has the paths of at most 20 fields and no values. With `first_alone` the check ends at
    the first rule that is broken.
    """
    try:
        violations = protovalidate.collect_violations(message, fail_fast=first_alone)
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
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
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
