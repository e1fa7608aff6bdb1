"""The least that a call can cost: a process that answers an RPC with one committed row.

`python -m tests.bench.floors <dsn>` prints its port and serves until its input ends.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
import psycopg
import uvloop

COMMIT = "/bench.Floor/Commit"
_CONNECTIONS = 8
_TABLE = "create table if not exists public.bench_floor (id bigint generated always as identity primary key, data bytea not null)"
_INSERT = "insert into public.bench_floor (data) values (%s)"


async def prepare_table(dsn: str) -> None:
    """Create the table into which floors write their rows."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(_TABLE)


@asynccontextmanager
async def commit_server(dsn: str) -> AsyncIterator[str]:
    """Start a process that commits the request of COMMIT as one row. Yields its `host:port`."""
    await prepare_table(dsn)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.floors",
        dsn,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the pipes that were asked for are there")
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def commit_floor(dsn: str) -> AsyncIterator["grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"]:
    """Open a bare channel to a call that commits its request as one row."""
    async with commit_server(dsn) as target, grpc.aio.insecure_channel(target) as channel:
        yield channel.unary_unary(COMMIT, bytes, bytes)


if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:
    _Handler = grpc.GenericRpcHandler  # It is generic for type checkers only.


class _Floor(_Handler):
    def __init__(self, idle: "asyncio.Queue[psycopg.AsyncConnection[Any]]") -> None:
        self._idle = idle

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        is_known = handler_call_details.method == COMMIT
        return grpc.unary_unary_rpc_method_handler(self._commit) if is_known else None

    async def _commit(self, request: bytes, context: Any) -> bytes:
        connection = await self._idle.get()
        try:
            await connection.execute(_INSERT, (request,), binary=True)
        finally:
            self._idle.put_nowait(connection)
        return b""


async def _serve(dsn: str) -> None:
    idle: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
    for _ in range(_CONNECTIONS):
        idle.put_nowait(await psycopg.AsyncConnection.connect(dsn, autocommit=True))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Floor(idle),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
