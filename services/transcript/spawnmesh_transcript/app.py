"""The transcript service, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh.transcript.v1.transcript_service_pb2_grpc import add_TranscriptServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_transcript.servicer import TranscriptServicer
from spawnmesh_transcript.settings import TranscriptSettings
from spawnmesh_transcript.tokens import vocabulary


@asynccontextmanager
async def open_service(process: Process, settings: TranscriptSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(vocabulary)  # Else the first append would wait for it.
        database = await stack.enter_async_context(
            open_database(settings.database_url, name="transcript", max_connections=settings.database_max_connections)
        )
        server = build_server(process, translate_errors=(translate,))
        add_TranscriptServiceServicer_to_server(TranscriptServicer(database), server)
        yield server
