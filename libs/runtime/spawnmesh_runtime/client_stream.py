"""Calls that send a stream.

The transport's client tells neither what kept a message from being made, nor what a server said that did not wait for the last one.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

T = TypeVar("T")


async def answer_to_stream(method: Any, messages: AsyncIterator[Any], **options: Any) -> Any:
    """Calls `stub.Method` with the messages. Raises AioRpcError as the call really ended, and what kept a message from being made."""
    sent = Messages(messages)
    call = method(sent, **options)
    end = EarlyEnd(call)
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise end.of(error) from None
    except asyncio.CancelledError:
        sent.raise_failure()
        raise


class Messages(Generic[T]):
    """The messages of a call, and what kept the last one from being made.

    The transport cancels the call for that, so that its caller would look cancelled.
    """

    def __init__(self, made: AsyncIterator[T]) -> None:
        self._made = made
        self._failure: Exception | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self._each()

    async def _each(self) -> AsyncIterator[T]:
        try:
            async for message in self._made:
                yield message
        except Exception as error:
            self._failure = error
            raise

    def raise_failure(self) -> None:
        """Raises it where there was one and nobody has cancelled the current task."""
        task = asyncio.current_task()
        if self._failure is not None and not (task and task.cancelling()):
            raise self._failure


class EarlyEnd:
    """Remembers how a call of a client stream ended.

    The transport's client forgets: a message that it sends as the end comes fails, and it then says INTERNAL in place of what the server said.
    """

    def __init__(self, call: Any) -> None:
        self._told: list[grpc.aio.AioRpcError] = []
        call.add_done_callback(self._tell)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The error with which the call really ended."""
        if _says_something(error):
            return error
        return next(filter(_says_something, self._told), error)

    def _tell(self, call: Any) -> None:
        """Called within each change of the call's end, so before the next one."""
        code = _at_hand(call.code())
        if code is not grpc.StatusCode.OK:
            trailing = _at_hand(call.trailing_metadata())
            ended = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, _at_hand(call.details()), None)
            self._told.append(ended)


def _says_something(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is not grpc.StatusCode.INTERNAL or bool(error.trailing_metadata())


def _at_hand(asked: Coroutine[Any, Any, T]) -> T:
    """What a call that is over answers without waiting."""
    try:
        asked.send(None)
    except StopIteration as answered:
        value: T = answered.value
        return value
    asked.close()
    raise RuntimeError("the call is not over")
