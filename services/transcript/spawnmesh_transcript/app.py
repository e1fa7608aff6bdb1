"""The transcript service, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh.transcript.v1.archive_service_pb2_grpc import add_ArchiveServiceServicer_to_server
from spawnmesh.transcript.v1.file_service_pb2_grpc import add_FileServiceServicer_to_server
from spawnmesh.transcript.v1.search_service_pb2_grpc import add_SearchServiceServicer_to_server
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import add_TranscriptServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_transcript.announcements import CHANNEL, open_announcements
from spawnmesh_transcript.append_queue import open_append_queue
from spawnmesh_transcript.archive_servicer import ArchiveServicer
from spawnmesh_transcript.file_servicer import FileServicer
from spawnmesh_transcript.follow import Followers
from spawnmesh_transcript.metrics import TierMetrics
from spawnmesh_transcript.payloads import open_payloads
from spawnmesh_transcript.search_servicer import SearchServicer
from spawnmesh_transcript.servicer import TranscriptServicer
from spawnmesh_transcript.settings import TranscriptSettings
from spawnmesh_transcript.tenants import Policies
from spawnmesh_transcript.tokens import vocabulary


@asynccontextmanager
async def open_service(process: Process, settings: TranscriptSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(vocabulary)  # Else the first append would wait for it.
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="transcript",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
            )
        )
        queue = await stack.enter_async_context(
            open_append_queue(database, slots=max(1, settings.database_max_connections // 4))
        )
        blobs = None
        if settings.attachment_blob_target:
            blobs = await stack.enter_async_context(
                open_peer(process, "attachment-blob", settings.attachment_blob_target)
            )
        payloads = await stack.enter_async_context(open_payloads(database, blobs))
        metrics = TierMetrics(process.metrics.meter)
        announcements = await stack.enter_async_context(open_announcements(database))
        listener = await stack.enter_async_context(
            open_listener(
                settings.database_direct_url or settings.database_url, name="transcript-listener", channels=(CHANNEL,)
            )
        )
        followers = Followers(database, listener, asyncio.Semaphore(max(1, settings.database_max_connections // 2)))
        server = build_server(process, translate_errors=(translate,))
        add_TranscriptServiceServicer_to_server(
            TranscriptServicer(database, queue, payloads, Policies(database), announcements, followers, metrics), server
        )
        add_FileServiceServicer_to_server(FileServicer(database, payloads, metrics), server)
        add_ArchiveServiceServicer_to_server(ArchiveServicer(database, announcements), server)
        add_SearchServiceServicer_to_server(SearchServicer(database), server)
        yield server
