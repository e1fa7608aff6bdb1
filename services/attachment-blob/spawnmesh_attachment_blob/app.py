"""The attachment-blob service, put together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import add_AttachmentBlobServiceServicer_to_server
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_runtime.metrics import NO_METRICS, Metrics
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_attachment_blob.admission import Admission
from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.blob_servicer import BlobServicer
from spawnmesh_attachment_blob.collecting import Collecting
from spawnmesh_attachment_blob.collection_metrics import CollectionMetrics
from spawnmesh_attachment_blob.domain.garbage import Ages
from spawnmesh_attachment_blob.multiparts import Multiparts
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.purging import Purging
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import S3Calls, http_pool, open_s3_calls
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.servicer import AttachmentBlobServicer, Parts
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.staging import LARGE_CALLS, TURNS, Staging
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.tenants import Tenants
from spawnmesh_attachment_blob.upload_parts import UploadParts
from spawnmesh_attachment_blob.upload_removal import UploadRemoval
from spawnmesh_attachment_blob.uploading import Uploading
from spawnmesh_attachment_blob.worker import Worker


@dataclass(frozen=True, slots=True)
class Stores:
    """The database and S3, and who takes things away there: what serving and collecting stand on."""

    database: Database
    calls: S3Calls
    buckets: TenantBuckets
    objects: ObjectStore
    multiparts: Multiparts
    turns: S3Turns
    removal: Removal
    upload_removal: UploadRemoval
    collecting: Collecting


@asynccontextmanager
async def open_stores(settings: AttachmentBlobSettings, metrics: Metrics = NO_METRICS) -> AsyncIterator[Stores]:
    """Connections and threads, closed when the block ends."""
    async with AsyncExitStack() as stack:
        max_connections = settings.database_max_connections
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="attachment-blob",
                max_connections=max_connections,
                pooled=bool(settings.database_direct_url),
                meter=metrics.meter,
            )
        )
        http = stack.enter_context(http_pool(settings))
        calls = await stack.enter_async_context(open_s3_calls(settings))
        buckets = TenantBuckets(settings, http)
        objects, multiparts = ObjectStore(buckets, calls), Multiparts(buckets, calls)
        turns = S3Turns(max_connections)
        removal = Removal(database, objects, turns)
        upload_removal = UploadRemoval(database, objects, multiparts, removal)
        ages = Ages(settings.collect_grace_seconds, settings.staged_ttl_seconds, settings.tombstone_ttl_seconds)
        counting = CollectionMetrics(metrics.meter)
        collecting = Collecting(database, objects, multiparts, removal, upload_removal, ages, counting)
        yield Stores(database, calls, buckets, objects, multiparts, turns, removal, upload_removal, collecting)


@asynccontextmanager
async def open_service(process: Process, settings: AttachmentBlobSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with open_stores(settings, process.metrics) as on:
        upload_parts = UploadParts(
            on.database, on.objects, on.multiparts, on.upload_removal, settings.upload_ttl_seconds
        )
        parts = Parts(
            tenants=Tenants(on.database, on.buckets, on.calls),
            staging=Staging(on.database, on.objects, on.turns, on.removal, max_bytes=settings.stage_max_bytes),
            attaching=Attaching(on.database),
            removal=on.removal,
            reading=Reading(
                on.database,
                on.objects,
                max_streams=settings.read_max_streams,
                idle_seconds=settings.read_idle_seconds,
            ),
            uploading=Uploading(on.database, upload_parts, settings),
            collecting=on.collecting,
            purging=Purging(on.database, on.objects, on.multiparts, on.buckets, on.calls),
        )
        server = build_server(process, translate_errors=(translate,))
        server.receive_in_turn(LARGE_CALLS, Admission(TURNS).taken)
        add_AttachmentBlobServiceServicer_to_server(AttachmentBlobServicer(parts), server)
        add_BlobServiceServicer_to_server(BlobServicer(parts.staging, parts.reading, parts.removal), server)
        add_deployment(server, on.database, "attachment-blob", workers=["attachment-blob-worker"])
        yield server


@asynccontextmanager
async def open_worker(process: Process, settings: AttachmentBlobSettings) -> AsyncIterator[Worker]:
    """What collects garbage by itself; closed when the block ends."""
    async with open_stores(settings, process.metrics) as on:
        yield Worker(on.database, on.collecting, settings.collect_interval_seconds)
