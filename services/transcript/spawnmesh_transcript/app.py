"""The transcript service, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from spawnmesh.transcript.v1.activity_service_pb2_grpc import add_ActivityServiceServicer_to_server
from spawnmesh.transcript.v1.archive_service_pb2_grpc import add_ArchiveServiceServicer_to_server
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import add_CompactionServiceServicer_to_server
from spawnmesh.transcript.v1.file_service_pb2_grpc import add_FileServiceServicer_to_server
from spawnmesh.transcript.v1.search_service_pb2_grpc import add_SearchServiceServicer_to_server
from spawnmesh.transcript.v1.storage_service_pb2_grpc import add_StorageServiceServicer_to_server
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import add_TranscriptServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.listener import open_listener
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_transcript.activities import forget_activities, open_activities
from spawnmesh_transcript.activity_servicer import ActivityServicer
from spawnmesh_transcript.announcements import CHANNEL, open_announcements
from spawnmesh_transcript.append_queue import open_append_queue
from spawnmesh_transcript.archive_servicer import ArchiveServicer
from spawnmesh_transcript.background import Cooling
from spawnmesh_transcript.compacting import Compactor
from spawnmesh_transcript.compaction_servicer import CompactionServicer
from spawnmesh_transcript.domain.families import Vocabulary
from spawnmesh_transcript.file_servicer import FileServicer
from spawnmesh_transcript.follow import Followers
from spawnmesh_transcript.import_threads import open_import_threads
from spawnmesh_transcript.importing import remove_stale_imports
from spawnmesh_transcript.metrics import CompactionMetrics, CoolingMetrics, SizeMetrics, TierMetrics
from spawnmesh_transcript.payloads import open_payloads
from spawnmesh_transcript.search_index import open_search_index
from spawnmesh_transcript.search_servicer import SearchServicer
from spawnmesh_transcript.search_threads import Turns, open_search_threads
from spawnmesh_transcript.searching import TURNS, Means
from spawnmesh_transcript.servicer import TranscriptServicer
from spawnmesh_transcript.settings import TranscriptSettings
from spawnmesh_transcript.storage_servicer import StorageServicer
from spawnmesh_transcript.telling import tell_summaries
from spawnmesh_transcript.tenants import Policies
from spawnmesh_transcript.tiering import Tiering
from spawnmesh_transcript.tokens import encoding
from spawnmesh_transcript.watching import Watchers
from spawnmesh_transcript.worker import Job, Worker


@asynccontextmanager
async def open_service(process: Process, settings: TranscriptSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(encoding, Vocabulary.O200K)  # Else the first append would wait for it.
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
        activities = await stack.enter_async_context(open_activities(database))
        payloads = await stack.enter_async_context(open_payloads(database, blobs, activities))
        metrics = TierMetrics(process.metrics.meter)
        announcements = await stack.enter_async_context(open_announcements(database))
        listener = await stack.enter_async_context(
            open_listener(
                settings.database_direct_url or settings.database_url, name="transcript-listener", channels=(CHANNEL,)
            )
        )
        looks = asyncio.Semaphore(max(1, settings.database_max_connections // 2))
        followers = Followers(database, payloads, listener, looks)
        server = build_server(process, translate_errors=(translate,))
        add_TranscriptServiceServicer_to_server(
            TranscriptServicer(database, queue, payloads, Policies(database), announcements, followers, metrics), server
        )
        add_FileServiceServicer_to_server(FileServicer(database, payloads, metrics, activities), server)
        imports = await stack.enter_async_context(open_import_threads())
        add_ArchiveServiceServicer_to_server(ArchiveServicer(database, payloads, announcements, imports), server)
        threads = await stack.enter_async_context(open_search_threads())
        index = await stack.enter_async_context(open_search_index(database, payloads, threads))
        searches = SearchServicer(Means(database, payloads, index, threads, Turns(TURNS)))
        add_SearchServiceServicer_to_server(searches, server)
        compactor = Compactor(
            database,
            await _peer(stack, process, "model-router", settings.model_router_target),
            await _peer(stack, process, "hook", settings.hook_target),
            activities,
            announcements,
            CompactionMetrics(process.metrics.meter),
        )
        add_CompactionServiceServicer_to_server(CompactionServicer(database, payloads, compactor), server)
        add_ActivityServiceServicer_to_server(ActivityServicer(Watchers(database, listener, looks)), server)
        tiering = Tiering(database, payloads, activities, CoolingMetrics(process.metrics.meter))
        add_StorageServiceServicer_to_server(StorageServicer(database, payloads, tiering), server)
        add_deployment(server, database, "transcript", workers=["transcript-worker"])
        yield server


@asynccontextmanager
async def open_worker(process: Process, settings: TranscriptSettings, stop: asyncio.Event) -> AsyncIterator[Worker]:
    """What looks after transcripts by itself, until `stop`; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="transcript-worker",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
            )
        )
        blobs = await _peer(stack, process, "attachment-blob", settings.attachment_blob_target)
        hook = await _peer(stack, process, "hook", settings.hook_target)
        activities = await stack.enter_async_context(open_activities(database))
        payloads = await stack.enter_async_context(open_payloads(database, blobs, activities))
        meter = process.metrics.meter
        cooling = Cooling(
            database, payloads, activities, CoolingMetrics(meter), stop, delay_seconds=settings.cool_delay_seconds
        )
        jobs: dict[str, Job] = {
            "forget_activities": partial(forget_activities, database),
            "remove_stale_imports": partial(remove_stale_imports, database),
        }
        if blobs:
            jobs |= {"settle": cooling.settle, "cool": cooling.cool}
        if hook:
            jobs["tell_summaries"] = partial(tell_summaries, database, hook)
        yield Worker(database, jobs, SizeMetrics(meter), stop, interval_seconds=settings.work_interval_seconds)


async def _peer(stack: AsyncExitStack, process: Process, name: str, target: str | None) -> Peer | None:
    """A peer until the stack is left; None without a target."""
    return await stack.enter_async_context(open_peer(process, name, target)) if target else None
