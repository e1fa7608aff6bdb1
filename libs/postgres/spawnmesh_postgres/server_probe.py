"""Find a server that keeps its connections open and does not answer, and leave it.

A stopped or frozen server keeps its connections, since its kernel acknowledges what no process
reads. A statement that waits cannot tell such a server from a lock that another transaction holds.
So this probe asks for a new connection to the same address meanwhile: a server that lives answers
the first packet, before it looks at roles and at its limit of connections, and so does a standby.
If it does not, the statements are left, and new ones are refused until it does.
"""

import asyncio
import errno
from collections.abc import Callable
from functools import partial

import psycopg
import structlog
from spawnmesh_core.silence_watch import SilenceWatch

Host = tuple[str, str]
"""A host, or the directory of a socket, and a port; '' means the default port."""

SUSPICIOUS_SECONDS = 0.4
"""The server of a statement that has waited for so long is asked for an answer."""

# A server answers within milliseconds, and a busy one within this time or the same time again.
_ANSWER_SECONDS = 0.5

# Request encryption by GSSAPI. The answer is one byte, and a server logs nothing if the client then
# closes the connection, as it would after the same request for TLS.
_QUESTION = b"\x00\x00\x00\x08\x04\xd2\x16\x30"

# The kernel reports that no answer will come. A socket file whose backlog is full is "not
# connected".
_NO_ANSWER = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN}


class ServerSilent(psycopg.OperationalError):
    """The server does not answer at the moment, so nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the server does not answer")


class StatementLeft(ServerSilent):
    """A statement was sent to a server that then did not answer.

    The server may execute it later, after it has answered others. A statement or commit that was
    sent takes effect then.
    """


class Server(SilenceWatch):
    """A server at one address, for all connections of a pool to it.

    `on_silence` is called when it has fallen silent.
    """

    def __init__(self, host: Host, on_silence: Callable[[Host], None]) -> None:
        super().__init__(partial(_ask, host), _ANSWER_SECONDS, self._changed)
        self._host = host
        self._on_silence = on_silence

    def _changed(self, is_silent: bool) -> None:
        name, _ = self._host
        if is_silent:
            structlog.get_logger().warning("postgresql_silent", host=name)
            self._on_silence(self._host)
        else:
            structlog.get_logger().info("postgresql_answers", host=name)


async def _ask(host: Host) -> None:
    """Return when the server has sent anything, or refused or closed the connection.

    In the latter case statements fail at once by themselves.
    """
    name, port = host
    try:
        if name.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(f"{name}/.s.PGSQL.{port}")
        else:
            reader, writer = await asyncio.open_connection(name, port)
        try:
            writer.write(_QUESTION)
            await reader.read(1)
        finally:
            writer.transport.abort()
    except OSError as error:
        if error.errno in _NO_ANSWER:
            await asyncio.Event().wait()
