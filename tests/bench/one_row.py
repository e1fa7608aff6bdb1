"""An RPC of the mesh that commits one row and does nothing else.

It has the contracts of AppendEntries and of StageSet, and everything that each RPC of a service
has: the token and the policy of the caller, the rules of the request, the log record of the call, a
connection of the pool, the scope of the tenant.

`python -m tests.bench.one_row <dsn> <jwks file>` prints its port on standard error and serves until
SIGTERM.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_devstack.stack import Stack
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.server import build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings

from tests.bench.floors import prepare_table

_CONNECTIONS = 8
_INSERT = "insert into public.bench_floor (data) select %(data)b where %(tenant_id)s <> '' returning id"


@asynccontextmanager
async def one_row_server(stack: Stack) -> AsyncIterator[str]:
    """Start the process that commits the one entry of AppendEntries, and the set id of StageSet, as
    one row.

    Yields its `host:port`.
    """
    await prepare_table(stack.superuser_dsn)
    arguments = ("-m", "tests.bench.one_row", stack.superuser_dsn, str(stack.keys / "jwks.json"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    if process.stderr is None:
        raise RuntimeError("the pipe that was asked for is there")
    try:
        yield f"127.0.0.1:{int(await process.stderr.readline())}"
    finally:
        process.terminate()
        await process.communicate()


class _OneEntry(TranscriptServiceServicer):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def AppendEntries(self, request: pb.AppendEntriesRequest, context: Any) -> pb.AppendEntriesResponse:
        """Commit the one entry."""
        [entry] = request.entries
        await self._database.call(current_caller().tenant_id, _INSERT, {"data": entry.SerializeToString()})
        return pb.AppendEntriesResponse()


class _OneSet(AttachmentBlobServiceServicer):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def StageSet(self, request: blob_pb.StageSetRequest, context: Any) -> blob_pb.StageSetResponse:
        """Commit the id of the set. Its files are not stored."""
        await self._database.call(current_caller().tenant_id, _INSERT, {"data": request.set_id.encode()})
        return blob_pb.StageSetResponse()


async def _serve(dsn: str, jwks: Path) -> None:
    async with (
        start_process(
            "floor", ProcessSettings(jwks_file=jwks, signing_key_file=jwks.with_name("session.pem"))
        ) as process,
        open_database(
            dsn, name="floor", max_connections=_CONNECTIONS, meter=process.metrics.meter
        ) as database,
    ):
        server = build_server(process)
        add_TranscriptServiceServicer_to_server(_OneEntry(database), server)
        add_AttachmentBlobServiceServicer_to_server(_OneSet(database), server)
        await run_until_stopped(
            process, server, on_ready=lambda port: print(port, file=sys.stderr, flush=True)
        )


if __name__ == "__main__":
    run_process(_serve(sys.argv[1], Path(sys.argv[2])))
