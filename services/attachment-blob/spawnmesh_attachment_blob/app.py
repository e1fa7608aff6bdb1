"""The attachment-blob service, put together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import add_AttachmentBlobServiceServicer_to_server
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.errors import translate
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_attachment_blob.attaching import Attaching
from spawnmesh_attachment_blob.objects import ObjectStore
from spawnmesh_attachment_blob.reading import Reading
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import http_pool, open_s3_calls
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.servicer import AttachmentBlobServicer
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_attachment_blob.staging import Staging
from spawnmesh_attachment_blob.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.tenants import Tenants


@asynccontextmanager
async def open_service(process: Process, settings: AttachmentBlobSettings) -> AsyncIterator[MeshServer]:
    """The server with everything registered, not started; what it stands on is closed when the block ends."""
    async with AsyncExitStack() as stack:
        max_connections = settings.database_max_connections
        database = await stack.enter_async_context(
            open_database(settings.database_url, name="attachment-blob", max_connections=max_connections)
        )
        http = stack.enter_context(http_pool(settings))
        calls = await stack.enter_async_context(open_s3_calls(settings))
        objects = ObjectStore(TenantBuckets(settings, http), calls)
        turns = S3Turns(max_connections)
        removal = Removal(database, objects, turns)
        servicer = AttachmentBlobServicer(
            Tenants(database, objects),
            Staging(database, objects, turns, removal),
            Attaching(database),
            removal,
            Reading(database, objects),
        )
        server = build_server(process, translate_errors=(translate,))
        add_AttachmentBlobServiceServicer_to_server(servicer, server)
        yield server
