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

import psycopg
import structlog
from spawnmesh_core.clock import monotonic_seconds

Host = tuple[str, str]
"""A host, or the directory of a socket, and a port; '' means the default port."""

SUSPICIOUS_SECONDS = 0.4
"""The server of a statement that has waited for so long is asked for an answer."""

# A server answers within milliseconds. On a busy machine one answer may be late, so it is asked
# twice, and a late answer to the first question counts. So does every answer to a statement.
_ANSWER_SECONDS = 0.4
_QUESTION_COUNT = 2
# A silent server is asked anew, since its backlog of new connections may be full.
_REPEAT_SECONDS = 2.0
# A wait that takes this much longer than planned says that this process was held up itself.
_HELD_UP_RATIO = 1.5

# Request encryption by GSSAPI. The answer is one byte, and a server logs nothing if the client then
# closes the connection, as it would after the same request for TLS.
_QUESTION = b"\x00\x00\x00\x08\x04\xd2\x16\x30"

# The kernel reports that no answer will come. A socket file whose backlog is full is "not
# connected".
_NO_ANSWER = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTCONN}


class ServerSilent(psycopg.OperationalError):
    """The server does not answer at the moment. It is unknown whether a statement that was sent is
    executed.
    """

    def __init__(self) -> None:
        super().__init__("the server does not answer")


class Server:
    """A server at one address, for all connections of a pool to it.

    `on_silence` is called when it has fallen silent. It costs nothing while nothing suspects it.
    """

    def __init__(self, host: Host, on_silence: Callable[[Host], None]) -> None:
        self.answer_count = 0
        """How often a connection has received something from the server."""
        self.is_silent = False
        """The server does not answer at the moment."""
        self._host = host
        self._on_silence = on_silence
        self._probing: asyncio.Task[None] | None = None

    def suspect(self) -> None:
        """Start to ask the server for an answer, if that is not being done."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def close(self) -> None:
        """Stop asking."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _probe(self) -> None:
        """Ask until there is an answer."""
        seen = self.answer_count
        questions: list[asyncio.Task[None]] = []
        try:
            for _ in range(_QUESTION_COUNT):
                questions.append(asyncio.create_task(_ask(self._host)))
                if await self._is_answered(questions, _ANSWER_SECONDS, seen):
                    return
            self.is_silent = True
            structlog.get_logger().warning("postgresql_silent", host=self._host[0])
            self._on_silence(self._host)
            while not await self._is_answered(questions, _REPEAT_SECONDS, seen):
                questions.pop(0).cancel()
                questions.append(asyncio.create_task(_ask(self._host)))
            structlog.get_logger().info("postgresql_answers", host=self._host[0])
        finally:
            self.is_silent = False
            for question in questions:
                question.cancel()
            await asyncio.gather(*questions, return_exceptions=True)

    async def _is_answered(self, questions: list[asyncio.Task[None]], seconds: float, seen: int) -> bool:
        """Wait for the answer to a question. Also an answer to a statement will do."""
        while True:
            begun = monotonic_seconds()
            answered, _ = await asyncio.wait(questions, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answered or self.answer_count != seen:
                return True
            if monotonic_seconds() - begun < seconds * _HELD_UP_RATIO:
                return False


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
