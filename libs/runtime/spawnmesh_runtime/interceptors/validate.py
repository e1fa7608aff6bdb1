"""Holds requests to the rules in their contract."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import protovalidate
from google.protobuf.message import Message
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import NO_MORE, Call, ServedMethod, Step

_SHOWN = 20


def validated_calls(inner: Step, method: ServedMethod) -> Step:
    """Every message of the request is checked before the servicer sees it."""

    async def step(call: Call) -> object:
        if method.client_streaming:
            call.request = _validated(call.context)
        else:
            require_valid(call.request)
        return await inner(call)

    return step


async def _validated(context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[Message]:
    """Not by the transport's iterator, which holds itself: what was read last would stay until such circles are looked for."""
    while (message := await context.read()) is not NO_MORE:
        require_valid(message)
        yield message


def require_valid(message: Message) -> None:
    """Raises MeshError INVALID_REQUEST with the path of each field that breaks a rule, at most 20 of them; values are not repeated."""
    violations = protovalidate.collect_violations(message)
    if not violations:
        return
    shown = tuple(
        FieldViolation(_path(found.proto.field), found.proto.message or "breaks a rule")
        for found in violations[:_SHOWN]
    )
    more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
    raise MeshError(
        Reason.INVALID_REQUEST, f"{shown[0].field or 'request'}: {shown[0].description}{more}", violations=shown
    )


def _path(field: protovalidate.FieldPathPb | None) -> str:
    return ".".join(_element(element) for element in field.elements) if field is not None else ""


def _element(element: protovalidate.FieldPathElementPb) -> str:
    if element.subscript is None:
        return element.field_name
    if element.subscript.field == "index":
        return f"{element.field_name}[{element.subscript.value}]"
    return f"{element.field_name}[]"  # A map's key is a value that the caller sent.
