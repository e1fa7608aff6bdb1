"""Read and decode the messages of a request once the caller is authorized."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.reasons import Reason

from spawnmesh_runtime.call import END_OF_STREAM, Call, Step
from spawnmesh_runtime.request_memory import SMALL_BYTES, RequestMemory

Decode = Callable[[bytes, Call], Any]
"""Return the message of the call with these bytes. Raises MeshError."""

Watch = Callable[[asyncio.Timeout], AbstractContextManager[None]]

NO_MESSAGE = "its bytes are not a message of this RPC"

# grpc.aio reads nothing from a call that broke (its message is too large, or the caller is gone),
# and cancels its task soon after. In this time a call without a message waits for its refusal.
_CANCELLATION_SECONDS = 0.1


def read_calls(
    inner: Step,
    decode: Decode,
    *,
    client_streaming: bool,
    timeout_seconds: float,
    memory: RequestMemory | None = None,
) -> Step:
    """Read the request of each call: one message, or each message when the servicer asks for it.

    A call whose bytes are no message is refused with INVALID_REQUEST, and one whose next message
    does not arrive in the time with DEADLINE_EXCEEDED. If `memory` is given, it bounds the requests
    that arrive slowly, and a large one waits for it before it is decoded; not those of a stream.
    """

    async def unary(call: Call) -> object:
        # `read()` instead of the iterator of grpc.aio: the iterator is part of a reference cycle
        # that keeps the last message in memory until a garbage collection. Nothing keeps the bytes.
        tenant_id = call.caller.charged_tenant_id if call.caller is not None else ""
        watch = None if memory is None else partial(memory.slow.watch, tenant_id)
        call.request = await _read(call.context, timeout_seconds, watch)
        if call.request is END_OF_STREAM:
            await asyncio.sleep(_CANCELLATION_SECONDS)
            raise invalid("request", "is missing: the call must send one message")
        if call.request_bytes is not None:
            call.request_bytes.count(call.request)
        if memory is None or len(call.request) <= SMALL_BYTES:
            call.request = decode(call.request, call)
            return await inner(call)
        async with memory.hold(tenant_id, len(call.request)):
            call.request = decode(call.request, call)
            return await inner(call)

    async def streaming(call: Call) -> object:
        call.request = _messages(call, decode, timeout_seconds)
        return await inner(call)

    return streaming if client_streaming else unary


def decode_with(deserialize: Callable[[bytes], Any]) -> Decode:
    """Return a decoder that refuses bytes that `deserialize` cannot read."""

    def decode(data: bytes, _call: Call) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise invalid("request", NO_MESSAGE) from None

    return decode


async def _read(
    context: "grpc.aio.ServicerContext[Any, Any]", timeout_seconds: float, watch: Watch | None = None
) -> Any:
    """Return the bytes of the next message, or END_OF_STREAM."""
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            with watch(limit) if watch is not None else nullcontext():
                return await context.read()
    except TimeoutError:
        if not limit.expired():
            raise
        raise MeshError(
            Reason.DEADLINE_EXCEEDED,
            f"the caller did not send a complete message within {timeout_seconds:g} s",
            facts={"message_timeout_seconds": f"{timeout_seconds:g}"},
        ) from None


async def _messages(call: Call, decode: Decode, timeout_seconds: float) -> AsyncIterator[Any]:
    counter = call.request_bytes
    while (data := await _read(call.context, timeout_seconds)) is not END_OF_STREAM:
        if counter is not None:
            await counter.count_of_stream(data)
        message = decode(data, call)
        del data
        yield message
