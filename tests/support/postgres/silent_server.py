"""A proxy to PostgreSQL that can fall silent (it accepts connections and forwards nothing), or
vanish as a machine without power does: its kernel acknowledges no packet.
"""

import asyncio
import ctypes
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import TIOCOUTQ

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.waiting import eventually

_SO_ATTACH_FILTER = 26  # Of Linux; the module `socket` does not name it.
_RETURN = 0x06


def _drop_packets(end: socket.socket) -> None:
    """Let the kernel drop every packet that arrives for the socket, before it is acknowledged.

    The filter of the Berkeley packet filter has one instruction: keep 0 bytes.
    """
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def _unacknowledged_bytes(end: socket.socket) -> int:
    if end.fileno() < 0 or end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return 0
    (count,) = struct.unpack("i", ioctl(end.fileno(), TIOCOUTQ, b"\0" * 4))
    return int(count)


@dataclass
class Way:
    """A proxy to a server on a unix socket."""

    path: str
    port: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[socket.socket] = field(default_factory=list)
    _carrying: set[asyncio.Task[None]] = field(default_factory=set)

    def dsn(self, dsn: str) -> str:
        """Return the DSN through the proxy.

        It disables encryption, so that a silent proxy still accepts new connections.
        """
        return make_conninfo(dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable")

    def fall_silent(self) -> None:
        """Stop forwarding."""
        self.open.clear()

    async def vanish(self) -> None:
        """Acknowledge nothing any more: neither data nor new connections. It stays so."""
        self.open.clear()
        # Data without an acknowledgement would be sent again, as no vanished machine does.
        await eventually(lambda: not any(_unacknowledged_bytes(end) for end in self.ends))
        for end in self.ends:
            if end.fileno() >= 0:
                _drop_packets(end)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions."""
        self.ends.append(writer.get_extra_info("socket"))
        there_reader, there_writer = await asyncio.open_unix_connection(self.path)
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
    way.ends.extend(server.sockets)
    try:
        yield way
    finally:
        server.close()
        await way.close()
