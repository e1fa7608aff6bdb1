"""Links to PostgreSQL that count the round trips of their clients."""

from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.links import Dial, Link, listening

_LENGTH_BYTES = 4
_ASK_FOR_ENCRYPTION_BYTES = 8  # Of the messages SSLRequest and GSSENCRequest.
_QUERY, _SYNC, _FLUSH = b"Q", b"S", b"H"
_ASK_FOR_ANSWERS = frozenset({_QUERY, _SYNC, _FLUSH})


class RoundTrips(Link):
    """Counts the messages Query, Sync and Flush of all connections.

    The server may keep its answers until one of them comes, and a client sends one if it waits. One
    directly after another counts once: the driver ends a pipeline with Sync and Flush. The
    connections must not be encrypted.
    """

    def __init__(self, dial: Dial) -> None:
        super().__init__(dial)
        self.count = 0

    async def forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward what the client sends, a message at a time."""
        has_types = False  # The messages that begin a connection have none.
        has_sent = False
        try:
            while header := await reader.read(1):
                kind, length = (header, b"") if has_types else (b"", header)
                length += await reader.readexactly(_LENGTH_BYTES - len(length))
                size = int.from_bytes(length)
                body = await reader.readexactly(size - _LENGTH_BYTES)
                asks = kind in _ASK_FOR_ANSWERS
                self.count += asks and (kind == _QUERY or has_sent)
                has_sent = not asks
                has_types = has_types or size != _ASK_FOR_ENCRYPTION_BYTES
                writer.write(kind + length + body)
                await writer.drain()
            writer.close()
        except (OSError, EOFError):
            writer.transport.abort()


@asynccontextmanager
async def open_counting_link(dial: Dial) -> AsyncIterator[RoundTrips]:
    """Listen on loopback for the block."""
    async with listening(RoundTrips(dial)) as link:
        yield link
