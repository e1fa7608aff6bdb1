"""Handlers for gRPC that leave reading, decoding and encoding to the interceptors."""

import inspect
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from spawnmesh_core.cancellation import shield_until_done

from spawnmesh_runtime.call import Call, Step


def servicer_step(handler: Any, on_answer: Callable[[Call, Any], None] | None = None) -> Step:
    """Return the innermost step: call the servicer of a generated handler and encode its answer.

    `on_answer` gets the response of a unary RPC before it is encoded.
    """
    behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    encode = handler.response_serializer

    async def unary(call: Call) -> bytes:
        answer = await behavior(call.request, call.context)
        if on_answer is not None:
            on_answer(call, answer)
        encoded: bytes = encode(answer)
        return encoded

    async def streaming(call: Call) -> None:
        # Written here, not by grpc.aio: the generator runs and closes within the interceptors, in
        # one task.
        has_begun = False
        async with aclosing(behavior(call.request, call.context)) as messages:
            async for message in messages:
                if not has_begun:
                    # grpc.aio sends it with the first message, and again with a refusal that
                    # interrupts that message: then neither arrives, and the caller waits forever.
                    await shield_until_done(call.context.send_initial_metadata(()))
                    has_begun = True
                await call.context.write(message)

    async def writing(call: Call) -> None:
        await behavior(call.request, call.context)

    if not handler.response_streaming:
        return unary
    return writing if inspect.iscoroutinefunction(behavior) else streaming


def wire_handler(handler: Any, step: Step) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return the handler that runs the step for each call of a generated handler.

    Each request is handled as a stream of bytes, also that of a unary call, which has one message.
    The wire format is the same, and grpc reads a message only when the step reads it.
    """

    async def serve(_messages: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        metadata: Any = context.invocation_metadata() or ()  # Pairs; the stubs say otherwise.
        return await step(Call(context, metadata))

    wired: grpc.RpcMethodHandler[Any, Any]
    if handler.response_streaming:
        wired = grpc.stream_stream_rpc_method_handler(serve, response_serializer=handler.response_serializer)
    else:
        wired = grpc.stream_unary_rpc_method_handler(serve)
    return wired
