"""Check requests against the rules of their contract."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import protovalidate
from google.protobuf.message import Message
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import END_OF_STREAM, Call, ServedMethod, Step

_SHOWN = 20


def validated_calls(inner: Step, method: ServedMethod) -> Step:
    """Check every message of the request before the servicer receives it."""

    async def step(call: Call) -> object:
        if method.client_streaming:
            call.request = _validated(call.context)
        else:
            require_valid(call.request)
        return await inner(call)

    return step


async def _validated(context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[Message]:
    """Yield the messages of a stream once they are valid.

    It calls `read()`: the iterator of grpc.aio is part of a reference cycle that keeps the last
    message in memory until a garbage collection.
    """
    while (message := await context.read()) is not END_OF_STREAM:
        require_valid(message)
        yield message


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
