"""A proxy to PostgreSQL that can fall silent: it accepts connections and forwards nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict, make_conninfo


@dataclass
class Way:
    """A proxy to a server on a unix socket."""

    socket: str
    port: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _carrying: set[asyncio.Task[None]] = field(default_factory=set)

    def dsn(self, dsn: str) -> str:
        """Return the DSN through the proxy.

        It disables encryption, so that a silent proxy still accepts new connections.
        """
        return make_conninfo(dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable")

    def fall_silent(self) -> None:
        """Stop forwarding."""
        self.open.clear()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions."""
        there_reader, there_writer = await asyncio.open_unix_connection(self.socket)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._forward_one(source, sink))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _forward_one(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65_536):
                    await self.open.wait()
                    sink.write(data)
                    await sink.drain()
                await self.open.wait()
        finally:
            sink.transport.abort()

    async def close(self) -> None:
        """Close the forwarded connections."""
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)


@asynccontextmanager
async def open_way(dsn: str) -> AsyncIterator[Way]:
    """Open a proxy to the server of the DSN for the block."""
    parts = conninfo_to_dict(dsn)
    way = Way(f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}")
    way.open.set()
    server = await asyncio.start_server(way.forward, "127.0.0.1", 0)
    way.port = server.sockets[0].getsockname()[1]
    try:
        yield way
    finally:
        server.close()
        await way.close()
