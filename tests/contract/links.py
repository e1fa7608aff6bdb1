"""Ways between processes that can be cut, held up and slowed while they are in use."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict

Dial = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]

_CHUNK_BYTES = 64 * 1024


class Link:
    """What goes through, byte by byte as it comes, between whoever connects to `target` and the server behind it."""

    def __init__(self, dial: Dial) -> None:
        self.target = ""
        self.delay_seconds = 0.0
        self._dial = dial
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[StreamWriter] = set()

    def cut(self) -> int:
        """Resets every connection, whatever is under way; gives how many ends there were."""
        ends = len(self._writers)
        for writer in self._writers:
            writer.transport.abort()
        return ends

    def hold(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        self._flows.clear()

    def heal(self) -> None:
        """Whatever is held up goes on, and nothing is slow."""
        self.delay_seconds = 0.0
        self._flows.set()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Carries one connection until either end is gone."""
        try:
            far_reader, far_writer = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
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
    """Listens on loopback until the block ends."""
    link = Link(dial)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.target = "127.0.0.1:" + str(server.sockets[0].getsockname()[1])
    try:
        yield link
    finally:
        server.close()
        link.heal()
        link.cut()


def to_address(target: str) -> Dial:
    """Dials `host:port`."""
    host, _, port = target.rpartition(":")
    return lambda: asyncio.open_connection(host, int(port))


def to_postgres(dsn: str) -> Dial:
    """Dials the server of a DSN that names the directory of its socket."""
    parts = conninfo_to_dict(dsn)
    return lambda: asyncio.open_unix_connection(f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}")
