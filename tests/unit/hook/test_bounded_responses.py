"""aiohttp reads any number of informational responses, and the bounded connector does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from spawnmesh_hook.clients.bounded_responses import (
    MAX_RESPONSES,
    OVERHEAD_BYTES,
    BoundedConnector,
    WebhookAnswerTooLarge,
)

MAX_BODY_BYTES = 200_000
LINE = b"HTTP/1.1 100\r\n\r\n"


def answer(body: bytes = b"hi") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@asynccontextmanager
async def site(*parts: bytes) -> AsyncIterator[str]:
    """Serve HTTP whose every answer is these bytes, each part at a time."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def get(connector: aiohttp.BaseConnector, *parts: bytes) -> bytes:
    async with (
        site(*parts) as url,
        aiohttp.ClientSession(connector=connector) as http,
        http.get(url) as response,
    ):
        return await response.read()


async def test_the_module_is_still_needed() -> None:
    flood = LINE * 1_000 + answer()
    assert await get(aiohttp.TCPConnector(), flood) == b"hi", "remove clients/bounded_responses.py"


@pytest.mark.parametrize("body", [b"hi", b"x" * MAX_BODY_BYTES], ids=len)
@pytest.mark.parametrize("part_bytes", [7_000, 10_000_000])
async def test_response_within_the_bounds_is_read(body: bytes, part_bytes: int) -> None:
    connector = BoundedConnector(MAX_BODY_BYTES)
    written = LINE * (MAX_RESPONSES - 1) + answer(body)
    parts = [written[start : start + part_bytes] for start in range(0, len(written), part_bytes)]
    assert await get(connector, *parts) == body
    assert not connector.is_exceeded


async def test_chunked_body_within_the_bounds_is_read() -> None:
    connector = BoundedConnector(MAX_BODY_BYTES)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await get(connector, head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n") == b"x" * 20_000
    assert not connector.is_exceeded


@pytest.mark.parametrize(
    "written",
    [
        LINE * MAX_RESPONSES + answer(),
        LINE * 100_000,
        b"HTTP/1.1 103\r\nA: %b\r\n\r\n" % (b"a" * 6_000) * 12 + answer(),
        answer(b"x" * (MAX_BODY_BYTES + OVERHEAD_BYTES)),
    ],
    ids=["lines", "endless lines", "headers", "body"],
)
async def test_response_above_the_bounds_ends_with_the_connection(written: bytes) -> None:
    connector = BoundedConnector(MAX_BODY_BYTES)
    with pytest.raises(WebhookAnswerTooLarge):
        await get(connector, written)
    assert connector.is_exceeded


async def test_connection_that_ends_early_is_no_response_above_the_bounds() -> None:
    connector = BoundedConnector(MAX_BODY_BYTES)
    with pytest.raises(aiohttp.ClientError):
        await get(connector, b"no HTTP\r\n\r\n")
    assert not connector.is_exceeded
