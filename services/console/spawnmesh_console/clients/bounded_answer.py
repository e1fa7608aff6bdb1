"""Answers of servers outside of the mesh, which are read only as far as an answer can be long."""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2


class AnswerTooLong(ValueError):
    """The body of an answer has more bytes than are read."""


def bounded_answer(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook for responses: reading a longer body raises AnswerTooLong."""

    async def bound(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, max_bytes)

    return bound


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, received: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._received = received
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for part in self._received:
            left -= len(part)
            if left < 0:
                raise AnswerTooLong("the answer is too large")
            yield part

    async def aclose(self) -> None:
        await self._received.aclose()
