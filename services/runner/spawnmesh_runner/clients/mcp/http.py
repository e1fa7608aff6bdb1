"""The transport to an MCP server at an address: one session for a run, with size limits."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from spawnmesh_runner.clients.mcp.config import MAX_MESSAGE_BYTES, MAX_MESSAGE_VALUES

_LEAVE_SECONDS = 2.0
_MAX_MARKS = 5 * MAX_MESSAGE_VALUES
"""A text in a message has some as well, so this bound is above that of the values."""


@asynccontextmanager
async def open_http(
    url: str, headers: Mapping[str, str], *, connect_seconds: float, call_seconds: float
) -> AsyncIterator[Any]:  # The SDK has no public name for the pair of streams.
    """Open streams to the server.

    Leaving the block ends its session and waits at most two seconds for that.

    Proxies, certificates and passwords of this process's environment are not used, and no redirect
    is followed.
    """
    timeout = httpx2.Timeout(connect_seconds, read=call_seconds + connect_seconds)
    asked = {**headers, "Accept-Encoding": "identity"}
    async with (
        httpx2.AsyncClient(
            headers=asked, timeout=timeout, transport=_BoundedTransport(), trust_env=False
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


class ResponseTooLarge(httpx2.StreamError):
    """A body exceeds the limit."""


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport whose response bodies are limited."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_LEAVE_SECONDS).as_dict()}
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("a compressed response to a request for none", request=request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        has_events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = (_BoundedEvents if has_events else _BoundedBody)(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    """A body that is one message."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = mark_count = 0
        async for chunk in self._inner:
            size, mark_count = size + len(chunk), mark_count + _marks(chunk)
            if size > MAX_MESSAGE_BYTES or mark_count > _MAX_MARKS:
                raise ResponseTooLarge("more than a message may have")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedEvents(_BoundedBody):
    """A body of events, each of which is a message. Their reader limits the size of each."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        mark_count, before = 0, b""
        async for chunk in self._inner:
            # An event ends with a blank line, of which a part may have arrived before.
            seen = before + chunk
            end = max(seen.rfind(blank) for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"))
            mark_count = _marks(seen[end:]) if end >= 0 else mark_count + _marks(chunk)
            if mark_count > _MAX_MARKS or _marks(chunk) > _MAX_MARKS:
                raise ResponseTooLarge("more than an event may have")
            before = seen[-3:]
            yield chunk


def _marks(data: bytes) -> int:
    """Return the number of characters that stand before JSON values, also within strings."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")
