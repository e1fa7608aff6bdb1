"""Composition root of the attachment-blob service."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from spawnmesh_core.dependency_watch import DependencyWatch
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.audit.servicer import add_audit
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.servicer import add_jobs
from spawnmesh_postgres.jobs.store import CHANNEL as JOBS_CHANNEL
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import Listener, open_listener
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_postgres.long_running.runner import OperationRunner
from spawnmesh_postgres.long_running.servicer import GOOGLE_NAME, OPERATION_SERVICE, add_operations
from spawnmesh_postgres.long_running.store import CHANNEL as OPERATIONS_CHANNEL
from spawnmesh_postgres.tenant_participant_servicer import add_tenant_participant
from spawnmesh_runtime.call_limits_follower import following_call_limits
from spawnmesh_runtime.caller import caller_role, caller_scope, caller_tenant_id
from spawnmesh_runtime.limiter import FairLimiter
from spawnmesh_runtime.metrics import NO_METRICS, Metrics
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.revocation_follower import following_revocations
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.tenant_work import run_for_tenant

from spawnmesh_attachment_blob.clients.multiparts import Multiparts
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls, http_pool, open_s3_calls
from spawnmesh_attachment_blob.clients.storage_probe import watching_storage
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.domain.garbage import Ages
from spawnmesh_attachment_blob.domain.uploads import UploadTotals, UploadUsage
from spawnmesh_attachment_blob.jobs.operation_steps import BlobSteps
from spawnmesh_attachment_blob.jobs.worker import Worker
from spawnmesh_attachment_blob.operations.file_reader import FileReader
from spawnmesh_attachment_blob.operations.garbage_collector import GarbageCollector
from spawnmesh_attachment_blob.operations.garbage_metrics import GarbageMetrics
from spawnmesh_attachment_blob.operations.operation_types import OPERATION_TYPES
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.s3_limiter import S3TransactionLimiter
from spawnmesh_attachment_blob.operations.set_stager import CALL_LIMIT, LARGE_CALLS, SetStager
from spawnmesh_attachment_blob.operations.tenant_bucket import TenantBucket
from spawnmesh_attachment_blob.operations.upload_limiter import UploadLimiter
from spawnmesh_attachment_blob.operations.upload_remover import UploadRemover
from spawnmesh_attachment_blob.operations.upload_writer import SpareParts, UploadStorage
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.servicer import AttachmentBlobServicer, BlobServicer
from spawnmesh_attachment_blob.rpc.tenant_data import AttachmentTenants
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings


@asynccontextmanager
async def open_dependencies(
    settings: AttachmentBlobSettings,
    metrics: Metrics = NO_METRICS,
    watch: DependencyWatch | None = None,
) -> AsyncIterator[Dependencies]:
    """Open the database, S3 and the operations; close them when the block ends.

    Database and S3 are among the dependencies of `watch` during the block.
    """
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="attachment-blob",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=metrics.meter,
                dependencies=watch,
            )
        )
        if watch is not None:
            stack.enter_context(watching_storage(watch, settings))
        buckets = TenantBuckets(settings, stack.enter_context(http_pool(settings)))
        calls = await stack.enter_async_context(open_s3_calls(settings))
        yield build_dependencies(settings, database, calls, buckets, ObjectStore(buckets, calls), metrics)


def build_dependencies(
    settings: AttachmentBlobSettings,
    database: Database,
    calls: S3Calls,
    buckets: TenantBuckets,
    objects: ObjectStore,
    metrics: Metrics = NO_METRICS,
) -> Dependencies:
    """Build the operations on an open database and open clients."""
    multiparts = Multiparts(buckets, calls)
    s3_limiter = S3TransactionLimiter(settings.database_max_connections)
    releaser = Releaser(database, objects, s3_limiter)
    upload_remover = UploadRemover(database, objects, multiparts, releaser)
    ages = Ages(settings.collect_grace_seconds, settings.staged_ttl_seconds, settings.tombstone_ttl_seconds)
    return Dependencies(
        database=database,
        calls=calls,
        buckets=buckets,
        objects=objects,
        multiparts=multiparts,
        releaser=releaser,
        stager=SetStager(database, objects, s3_limiter, releaser, max_bytes=settings.stage_max_bytes),
        reader=FileReader(
            database,
            objects,
            max_streams=settings.read_max_streams,
            idle_seconds=settings.read_idle_seconds,
        ),
        upload_remover=upload_remover,
        upload_storage=UploadStorage(
            database, objects, multiparts, upload_remover, SpareParts(), settings.upload_ttl_seconds
        ),
        upload_limiter=UploadLimiter(settings.upload_max_streams),
        upload_quota=UploadUsage(
            UploadTotals(settings.upload_max_open, settings.upload_max_open_bytes),
            UploadTotals(settings.upload_max_finished, settings.upload_max_finished_bytes),
        ),
        upload_idle_seconds=settings.upload_idle_seconds,
        collector=GarbageCollector(
            database, objects, multiparts, releaser, upload_remover, ages, GarbageMetrics(metrics.meter)
        ),
        tenant_bucket=TenantBucket(objects, multiparts, buckets, calls),
    )


@asynccontextmanager
async def open_service(process: Process, settings: AttachmentBlobSettings) -> AsyncIterator[MeshServer]:
    """Build the server, not started; close its dependencies when the block ends."""
    async with (
        open_dependencies(settings, process.metrics, process.dependencies) as deps,
        following_revocations(process, settings.session_target),
        following_call_limits(process, settings.session_target),
        open_audit_log(deps.database, process.metrics.meter, process.logger) as audit,
        _open_listener(settings, "attachment-blob", OPERATIONS_CHANNEL) as listener,
    ):
        operations = Operations("attachment-blob", deps.database, listener, OPERATION_TYPES)
        server = build_server(process, translate_errors=(translate,), record=audit.record)
        server.admit_before_read(LARGE_CALLS, FairLimiter(CALL_LIMIT).hold)
        add_AttachmentBlobServiceServicer_to_server(AttachmentBlobServicer(deps, operations), server)
        add_BlobServiceServicer_to_server(BlobServicer(deps), server)
        add_tenant_participant(server, deps.database, AttachmentTenants(deps.tenant_bucket), caller_tenant_id)
        add_jobs(server, deps.database)
        add_operations(server, operations, caller_role)
        server.serve_also_as(GOOGLE_NAME, OPERATION_SERVICE)
        add_audit(server, deps.database, "attachment-blob", caller_scope)
        add_deployment(
            server,
            deps.database,
            "attachment-blob",
            workers=["attachment-blob-worker"],
            dependencies=process.dependencies,
        )
        yield server


@asynccontextmanager
async def open_worker(process: Process, settings: AttachmentBlobSettings) -> AsyncIterator[Worker]:
    """Build the worker; close its dependencies when the block ends."""
    async with (
        open_dependencies(settings, process.metrics, process.dependencies) as deps,
        open_audit_log(deps.database, process.metrics.meter, process.logger) as audit,
        _open_listener(settings, "attachment-blob-worker-listener", JOBS_CHANNEL) as listener,
    ):
        steps = BlobSteps(deps.collector).by_method()
        jobs = JobWorker(
            deps.database,
            listener,
            [OperationRunner("attachment-blob", deps.database, steps).kind()],
            run_for_tenant,
            JobMetrics(process.metrics.meter),
            grace_seconds=0.0,
        )
        yield Worker(deps.database, deps.collector, settings.collect_interval_seconds, audit.record, jobs)


def _open_listener(
    settings: AttachmentBlobSettings, name: str, channel: str
) -> AbstractAsyncContextManager[Listener]:
    """Open a listener to one channel, past a pooler."""
    return open_listener(
        settings.database_direct_url or settings.database_url, name=name, channels=(channel,)
    )
