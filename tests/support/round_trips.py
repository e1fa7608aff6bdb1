"""Links to PostgreSQL that count the round trips of their clients."""

from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.links import Dial, Link, listening

_READY_FOR_QUERY = ord("Z")
_HEADER_BYTES = 5  # The type of a message, and its length without the type.


class RoundTrips(Link):
    """Counts the messages ReadyForQuery of all connections. The connections must not be encrypted."""

    def __init__(self, dial: Dial) -> None:
        super().__init__(dial)
        self.count = 0

    async def backward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward what the server sends, a message at a time."""
        try:
            while header := await reader.read(1):
                header += await reader.readexactly(_HEADER_BYTES - 1)
                body = await reader.readexactly(int.from_bytes(header[1:]) - (_HEADER_BYTES - 1))
                # Before the client has it: a call that has ended is counted.
                self.count += header[0] == _READY_FOR_QUERY
                writer.write(header + body)
                await writer.drain()
            writer.close()
        except (OSError, EOFError):
            writer.transport.abort()


@asynccontextmanager
async def open_counting_link(dial: Dial) -> AsyncIterator[RoundTrips]:
    """Listen on loopback for the block."""
    async with listening(RoundTrips(dial)) as link:
        yield link
