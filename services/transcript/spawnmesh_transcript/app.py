"""Composition root of the transcript service and its worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from spawnmesh.transcript.v1.activity_service_pb2_grpc import add_ActivityServiceServicer_to_server
from spawnmesh.transcript.v1.archive_service_pb2_grpc import add_ArchiveServiceServicer_to_server
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import add_CompactionServiceServicer_to_server
from spawnmesh.transcript.v1.file_service_pb2_grpc import add_FileServiceServicer_to_server
from spawnmesh.transcript.v1.integrity_service_pb2_grpc import add_IntegrityServiceServicer_to_server
from spawnmesh.transcript.v1.live_service_pb2_grpc import add_LiveServiceServicer_to_server
from spawnmesh.transcript.v1.search_service_pb2_grpc import add_SearchServiceServicer_to_server
from spawnmesh.transcript.v1.storage_service_pb2_grpc import add_StorageServiceServicer_to_server
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import add_TranscriptServiceServicer_to_server
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.audit.servicer import add_audit
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs.metrics import JobMetrics
from spawnmesh_postgres.jobs.servicer import add_jobs
from spawnmesh_postgres.jobs.store import CHANNEL as JOBS_CHANNEL
from spawnmesh_postgres.jobs.worker import JobWorker
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_postgres.long_running.runner import OperationRunner
from spawnmesh_postgres.long_running.servicer import GOOGLE_NAME, OPERATION_SERVICE, add_operations
from spawnmesh_postgres.long_running.store import CHANNEL as OPERATIONS_CHANNEL
from spawnmesh_postgres.tenant_participant_servicer import add_tenant_participant
from spawnmesh_runtime.call_limits_follower import following_call_limits
from spawnmesh_runtime.caller import caller_role, caller_scope, caller_tenant_id
from spawnmesh_runtime.cpu_workers import open_cpu_workers
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.revocation_follower import following_revocations
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.tenant_work import run_for_tenant

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.token_vocabularies import Vocabulary
from spawnmesh_transcript.jobs.externalize_payloads import PayloadExternalizer
from spawnmesh_transcript.jobs.forget_activities import forget_activities
from spawnmesh_transcript.jobs.operation_steps import TranscriptSteps
from spawnmesh_transcript.jobs.remove_stale_imports import remove_stale_imports
from spawnmesh_transcript.jobs.settle_payloads import settle_payloads
from spawnmesh_transcript.jobs.summary_publication import SummaryPublisher
from spawnmesh_transcript.jobs.verify_transcripts import TranscriptVerifier
from spawnmesh_transcript.jobs.worker import MaintenanceTask, Worker
from spawnmesh_transcript.metrics import (
    CompactionMetrics,
    ExternalizationMetrics,
    SizeMetrics,
    StubMetrics,
    VerificationMetrics,
)
from spawnmesh_transcript.operations.activity_recorder import open_activity_recorder
from spawnmesh_transcript.operations.append_queue import open_append_queue
from spawnmesh_transcript.operations.bodies.tokens import encoding
from spawnmesh_transcript.operations.bulk_threads import open_bulk_threads
from spawnmesh_transcript.operations.change_notifier import CHANNEL, open_change_notifier
from spawnmesh_transcript.operations.compaction.compact import Compactor
from spawnmesh_transcript.operations.compaction.recorded import RecordedCompactor
from spawnmesh_transcript.operations.live_reads import LiveReads
from spawnmesh_transcript.operations.operation_types import OPERATION_TYPES
from spawnmesh_transcript.operations.payload_uploader import open_payload_uploader
from spawnmesh_transcript.operations.policy_cache import TranscriptPolicyCache
from spawnmesh_transcript.operations.search.find_entries import CONCURRENT_SEARCHES, SearchDependencies
from spawnmesh_transcript.operations.search.index import open_search_index
from spawnmesh_transcript.operations.search.threads import open_search_threads
from spawnmesh_transcript.operations.session_files.import_threads import open_import_threads
from spawnmesh_transcript.operations.tiering import PayloadTiering
from spawnmesh_transcript.operations.verification.report import VerificationReporter
from spawnmesh_transcript.rpc.dependencies import Dependencies
from spawnmesh_transcript.rpc.servicer import (
    ActivityServicer,
    ArchiveServicer,
    CompactionServicer,
    FileServicer,
    IntegrityServicer,
    LiveServicer,
    SearchServicer,
    StorageServicer,
    TranscriptServicer,
)
from spawnmesh_transcript.rpc.tenant_data import TranscriptTenants
from spawnmesh_transcript.settings import TranscriptSettings

_WORKER_MODULES = (
    "spawnmesh_transcript.operations.bodies.prepare",
    "spawnmesh_transcript.operations.fork_copy",
    "spawnmesh_transcript.operations.session_files.line_storage",
    "spawnmesh_transcript.operations.session_files.file_writer",
    "spawnmesh_transcript.operations.bodies.worker_preload",
)
"""The modules that worker processes share: those of the functions that they call, and the
vocabulary.
"""

_OPERATIONS = 16
"""The operations that a worker executes at once: compactions wait for models most of the time."""


@asynccontextmanager
async def open_service(process: Process, settings: TranscriptSettings) -> AsyncIterator[MeshServer]:
    """Build the server with all services registered, not started.

    Its resources close with the block.
    """
    async with AsyncExitStack() as stack:
        # Otherwise the first append would load it.
        await asyncio.to_thread(encoding, Vocabulary.O200K)
        deps = await open_dependencies(stack, process, settings)
        await stack.enter_async_context(following_revocations(process, settings.session_target))
        await stack.enter_async_context(following_call_limits(process, settings.session_target))
        audit = await stack.enter_async_context(
            open_audit_log(deps.database, process.metrics.meter, process.logger)
        )
        server = build_server(process, translate_errors=(translate,), record=audit.record)
        add_TranscriptServiceServicer_to_server(TranscriptServicer(deps), server)
        add_LiveServiceServicer_to_server(LiveServicer(deps), server)
        add_FileServiceServicer_to_server(FileServicer(deps), server)
        add_ArchiveServiceServicer_to_server(ArchiveServicer(deps), server)
        add_SearchServiceServicer_to_server(SearchServicer(deps), server)
        add_CompactionServiceServicer_to_server(CompactionServicer(deps), server)
        add_ActivityServiceServicer_to_server(ActivityServicer(deps), server)
        add_IntegrityServiceServicer_to_server(IntegrityServicer(deps), server)
        add_StorageServiceServicer_to_server(StorageServicer(deps), server)
        add_tenant_participant(server, deps.database, TranscriptTenants(deps.policies), caller_tenant_id)
        add_jobs(server, deps.database)
        add_operations(server, deps.operations, caller_role)
        server.serve_also_as(GOOGLE_NAME, OPERATION_SERVICE)
        add_audit(server, deps.database, "transcript", caller_scope)
        add_deployment(
            server,
            deps.database,
            "transcript",
            workers=["transcript-worker"],
            dependencies=process.dependencies,
        )
        yield server


async def open_dependencies(
    stack: AsyncExitStack, process: Process, settings: TranscriptSettings
) -> Dependencies:
    """Open what the RPCs share. It closes with the stack."""
    meter, connections = process.metrics.meter, settings.database_max_connections
    database = await stack.enter_async_context(
        open_database(
            settings.database_url,
            name="transcript",
            max_connections=connections,
            pooled=bool(settings.database_direct_url),
            meter=meter,
            dependencies=process.dependencies,
        )
    )
    queue = await stack.enter_async_context(open_append_queue(database, slots=max(1, connections // 4)))
    blobs = BlobStore(await _open_peer(stack, process, "attachment-blob", settings.attachment_blob_target))
    activities = await stack.enter_async_context(open_activity_recorder(database))
    uploader = await stack.enter_async_context(open_payload_uploader(database, blobs, activities))
    notifier = await stack.enter_async_context(open_change_notifier(database))
    listener = await stack.enter_async_context(
        open_listener(
            settings.database_direct_url or settings.database_url,
            name="transcript-listener",
            channels=(CHANNEL, OPERATIONS_CHANNEL),
        )
    )
    workers = await stack.enter_async_context(open_cpu_workers(settings, meter, modules=_WORKER_MODULES))
    import_threads = await stack.enter_async_context(open_import_threads(workers))
    bulk_threads = await stack.enter_async_context(open_bulk_threads())
    search_threads = await stack.enter_async_context(open_search_threads())
    index = await stack.enter_async_context(open_search_index(database, blobs, search_threads))
    poll_limit = FairLimiter(LimiterPolicy("reads of watches", "", max(1, connections // 2)))
    live_reads = LiveReads(database, blobs, poll_limit)
    stack.push_async_callback(live_reads.finish)
    return Dependencies(
        database=database,
        listener=listener,
        notifier=notifier,
        poll_limit=poll_limit,
        live_reads=live_reads,
        policies=TranscriptPolicyCache(database),
        activities=activities,
        append_queue=queue,
        blobs=blobs,
        uploader=uploader,
        workers=workers,
        import_threads=import_threads,
        bulk_threads=bulk_threads,
        search=SearchDependencies(
            database,
            blobs,
            index,
            search_threads,
            FairLimiter(LimiterPolicy("searches", "", CONCURRENT_SEARCHES, tenant_capacity=1)),
        ),
        tiering=PayloadTiering(database, blobs, workers, uploader, activities, ExternalizationMetrics(meter)),
        operations=Operations("transcript", database, listener, OPERATION_TYPES),
        compactor=RecordedCompactor(
            Compactor(
                database,
                bulk_threads,
                await _open_peer(stack, process, "model-router", settings.model_router_target),
                await _open_peer(stack, process, "hook", settings.hook_target),
            ),
            notifier,
            activities,
            CompactionMetrics(meter),
        ),
        stub_metrics=StubMetrics(meter),
        verification=VerificationReporter(VerificationMetrics(meter), activities),
    )


@asynccontextmanager
async def open_worker(
    process: Process, settings: TranscriptSettings, stop: asyncio.Event
) -> AsyncIterator[Worker]:
    """Build the worker, which works until `stop` is set. Its resources close with the block."""
    async with AsyncExitStack() as stack:
        meter = process.metrics.meter
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="transcript-worker",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=meter,
                dependencies=process.dependencies,
            )
        )
        blobs = BlobStore(
            await _open_peer(stack, process, "attachment-blob", settings.attachment_blob_target)
        )
        activities = await stack.enter_async_context(open_activity_recorder(database))
        uploader = await stack.enter_async_context(open_payload_uploader(database, blobs, activities))
        metrics = ExternalizationMetrics(meter)
        externalizer = PayloadExternalizer(database, blobs, activities, metrics, stop)
        maintenance: dict[str, MaintenanceTask] = {
            "forget_activities": partial(forget_activities, database),
            "remove_stale_imports": partial(remove_stale_imports, database),
        }
        if blobs.is_connected:
            maintenance["settle_payloads"] = partial(settle_payloads, database, uploader, metrics, stop)
            maintenance["externalize_payloads"] = externalizer.externalize
        threads = await stack.enter_async_context(open_bulk_threads())
        if settings.verified_entries_per_round:
            reporter = VerificationReporter(VerificationMetrics(meter), activities)
            verifier = TranscriptVerifier(
                database,
                blobs,
                threads,
                reporter,
                stop,
                entries_per_round=settings.verified_entries_per_round,
            )
            maintenance["verify_transcripts"] = verifier.verify
        workers = await stack.enter_async_context(open_cpu_workers(settings, meter, modules=_WORKER_MODULES))
        tiering = PayloadTiering(database, blobs, workers, uploader, activities, metrics)
        router = await _open_peer(stack, process, "model-router", settings.model_router_target)
        hooks = await _open_peer(stack, process, "hook", settings.hook_target)
        compactor = RecordedCompactor(
            Compactor(database, threads, router, hooks),
            await stack.enter_async_context(open_change_notifier(database)),
            activities,
            CompactionMetrics(meter),
        )
        steps = TranscriptSteps(database, blobs, workers, tiering, compactor)
        operations = OperationRunner("transcript", database, steps.by_method(), concurrency=_OPERATIONS)
        yield Worker(
            database,
            maintenance,
            SizeMetrics(meter),
            stop,
            interval_seconds=settings.work_interval_seconds,
            jobs=await _open_jobs(stack, process, settings, database, operations, hooks),
        )


async def _open_jobs(
    stack: AsyncExitStack,
    process: Process,
    settings: TranscriptSettings,
    database: Database,
    operations: OperationRunner,
    hooks: Peer | None,
) -> JobWorker:
    """Build the worker of the background jobs, not running.

    Without a hook service, the publication of summaries waits.
    """
    kinds = [operations.kind()]
    if hooks is not None:
        kinds.append(SummaryPublisher(database, hooks).kind())
    listener = await stack.enter_async_context(
        open_listener(
            settings.database_direct_url or settings.database_url,
            name="transcript-worker-listener",
            channels=(JOBS_CHANNEL,),
        )
    )
    return JobWorker(
        database,
        listener,
        kinds,
        run_for_tenant,
        JobMetrics(process.metrics.meter),
        grace_seconds=0.0,
    )


async def _open_peer(stack: AsyncExitStack, process: Process, name: str, target: str | None) -> Peer | None:
    """Open a peer that closes with the stack; None without a target."""
    return await stack.enter_async_context(open_peer(process, name, target)) if target else None
