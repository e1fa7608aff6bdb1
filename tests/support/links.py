"""Links between processes that can be cut, held and slowed while they are in use."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from psycopg.conninfo import conninfo_to_dict

L = TypeVar("L", bound="Link")
Dial = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]

_CHUNK_BYTES = 64 * 1024
_DIAL_AGAIN_SECONDS = 1.0


class Link:
    """A proxy that forwards bytes between its clients and the server at `target`."""

    def __init__(self, dial: Dial) -> None:
        self.target = ""
        self.delay_seconds = 0.0
        self._dial = dial
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[StreamWriter] = set()

    def cut(self) -> int:
        """Reset every connection, and return the number of closed ends."""
        ends = len(self._writers)
        for writer in self._writers:
            writer.transport.abort()
        return ends

    def hold(self) -> None:
        """Forward nothing in either direction, without closing connections."""
        self._flows.clear()

    def heal(self) -> None:
        """Forward again, without delay."""
        self.delay_seconds = 0.0
        self._flows.set()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward one connection until either end closes."""
        try:
            far_reader, far_writer = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self.forward(reader, far_writer), self.backward(far_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward what the client sends."""
        await self._forward(reader, writer)

    async def backward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward what the server sends."""
        await self._forward(reader, writer)

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            writer.transport.abort()


@asynccontextmanager
async def open_link(dial: Dial) -> AsyncIterator[Link]:
    """Listen on loopback for the block."""
    async with listening(Link(dial)) as link:
        yield link


@asynccontextmanager
async def listening(link: L) -> AsyncIterator[L]:
    """Let clients connect to the link for the block."""
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.target = "127.0.0.1:" + str(server.sockets[0].getsockname()[1])
    try:
        yield link
    finally:
        server.close()
        link.heal()
        link.cut()


def to_address(target: str) -> Dial:
    """Connect to `host:port`."""
    host, _, port = target.rpartition(":")
    return lambda: asyncio.open_connection(host, int(port))


def to_postgres(dsn: str) -> Dial:
    """Connect to the server of a DSN that names the directory of its socket.

    A server whose backlog of new connections is full refuses one more on its socket. asyncio takes
    that for a connection, which has no peer. Over TCP such a server does not answer, and the
    client's kernel asks again, later each time. So does this.
    """
    parts = conninfo_to_dict(dsn)
    path = f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}"

    async def dial() -> tuple[StreamReader, StreamWriter]:
        pause = _DIAL_AGAIN_SECONDS
        while True:
            reader, writer = await asyncio.open_unix_connection(path)
            if writer.get_extra_info("peername"):
                return reader, writer
            writer.transport.abort()
            await asyncio.sleep(pause)
            pause *= 2

    return dial
