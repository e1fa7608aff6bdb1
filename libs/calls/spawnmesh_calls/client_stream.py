"""Call RPCs with a request stream and report how the call really failed.

The client of grpc.aio hides two errors: the exception of the request iterator, and the status of a
server that answers before it has read the last message.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

T = TypeVar("T")


async def call_client_stream(method: Any, messages: AsyncIterator[Any], **options: Any) -> Any:
    """Call `stub.Method` with the messages and return the response.

    Raises AioRpcError with the status that the server sent, and the exception of `messages`.
    """
    sent = RequestMessages(messages)
    call = method(sent, **options)
    status = FirstStatus(call)
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise status.of(error) from None
    except asyncio.CancelledError:
        sent.raise_failure()
        raise


class RequestMessages(Generic[T]):
    """The messages of a call, and the exception of their iterator.

    grpc.aio cancels the call if the iterator fails, so the caller only sees a cancellation.
    """

    def __init__(self, messages: AsyncIterator[T]) -> None:
        self._messages = messages
        self._failure: Exception | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self._each()

    async def _each(self) -> AsyncIterator[T]:
        try:
            async for message in self._messages:
                yield message
        except Exception as error:
            self._failure = error
            raise

    def raise_failure(self) -> None:
        """Raise the exception of the iterator, if there is one and the current task is
        not cancelled.
        """
        task = asyncio.current_task()
        if self._failure is not None and not (task and task.cancelling()):
            raise self._failure


class FirstStatus:
    """The first status of a client-streaming call.

    grpc.aio loses it: if the status arrives while a message is being sent, the send fails, and the
    client reports INTERNAL instead of the status that the server sent.
    """

    def __init__(self, call: Any) -> None:
        self._received: list[grpc.aio.AioRpcError] = []
        call.add_done_callback(self._record)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error with the status that the server sent."""
        if _is_from_server(error):
            return error
        return next(filter(_is_from_server, self._received), error)

    def _record(self, call: Any) -> None:
        """Record the status. grpc.aio calls this for each status, before the next one
        replaces it.
        """
        code = _completed(call.code())
        if code is not grpc.StatusCode.OK:
            trailing = _completed(call.trailing_metadata())
            ended = grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(), trailing, _completed(call.details()), None
            )
            self._received.append(ended)


def _is_from_server(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is not grpc.StatusCode.INTERNAL or bool(error.trailing_metadata())


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of a completed call, which does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        value: T = returned.value
        return value
    coroutine.close()
    raise RuntimeError("the call is not over")
