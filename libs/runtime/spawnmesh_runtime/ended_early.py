"""How a call ended whose server did not wait for the end of what it was sent."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

T = TypeVar("T")


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
