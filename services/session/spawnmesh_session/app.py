"""The composition root: settings, pool, clients, operations, servicers, server; and the worker."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh.session.v1.approval_service_pb2_grpc import add_ApprovalServiceServicer_to_server
from spawnmesh.session.v1.budget_service_pb2_grpc import add_BudgetServiceServicer_to_server
from spawnmesh.session.v1.run_service_pb2_grpc import add_RunServiceServicer_to_server
from spawnmesh.session.v1.schedule_service_pb2_grpc import add_ScheduleServiceServicer_to_server
from spawnmesh.session.v1.session_service_pb2_grpc import add_SessionServiceServicer_to_server
from spawnmesh.session.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from spawnmesh.session.v1.token_service_pb2_grpc import add_TokenServiceServicer_to_server
from spawnmesh_postgres.audit.log import AuditLog, open_audit_log
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
from spawnmesh_runtime.caller import caller_role, caller_scope
from spawnmesh_runtime.cpu_workers import CpuWorkers, open_cpu_workers
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.tenant_work import run_for_tenant

from spawnmesh_session.clients.attachment_sets import AttachmentSets
from spawnmesh_session.clients.hooks import Hooks
from spawnmesh_session.clients.tenant_participants import ParticipantClient, TenantParticipants
from spawnmesh_session.clients.transcript_watches import TranscriptWatches, open_transcript_watches
from spawnmesh_session.clients.transcripts import Transcripts
from spawnmesh_session.gauges import Gauges
from spawnmesh_session.jobs.budget_jobs import BudgetJobs
from spawnmesh_session.jobs.clean_ups import CleanUps
from spawnmesh_session.jobs.follow_ups import FollowUps
from spawnmesh_session.jobs.kinds import make_kinds
from spawnmesh_session.jobs.operation_steps import TenantSteps
from spawnmesh_session.jobs.retention import RetentionJob
from spawnmesh_session.jobs.run_end_events import RunEndPublisher
from spawnmesh_session.jobs.schedules import ScheduleJobs
from spawnmesh_session.jobs.service_heartbeats import open_service_heartbeats
from spawnmesh_session.jobs.session_events import SessionEventPublisher
from spawnmesh_session.jobs.sweep import Sweeper
from spawnmesh_session.jobs.worker import run_worker
from spawnmesh_session.metrics import RunMetrics
from spawnmesh_session.operations.approval_decisions import ApprovalDecider
from spawnmesh_session.operations.approval_requests import ApprovalRequester
from spawnmesh_session.operations.budget_changes import BudgetChanger
from spawnmesh_session.operations.budget_waits import BudgetWaits
from spawnmesh_session.operations.call_limits_feed import CallLimitsFeed, open_call_limits_feed
from spawnmesh_session.operations.claim_limits import ClaimLimits
from spawnmesh_session.operations.claim_lines import ClaimLines
from spawnmesh_session.operations.family_kill import FamilyKiller
from spawnmesh_session.operations.file_publishing import FilePublisher
from spawnmesh_session.operations.finalize_saga import FinalizeSaga
from spawnmesh_session.operations.member_watch import WatchSource
from spawnmesh_session.operations.message_sending import MessageSender
from spawnmesh_session.operations.model_call_counting import ModelCallCounter
from spawnmesh_session.operations.operation_types import OPERATION_TYPES
from spawnmesh_session.operations.revocation_feed import RevocationFeed, open_revocation_feed
from spawnmesh_session.operations.run_change_hints import RunChangeHints
from spawnmesh_session.operations.run_claiming import RunClaimer
from spawnmesh_session.operations.run_interruption import RunInterrupter
from spawnmesh_session.operations.run_queueing import RunQueuer
from spawnmesh_session.operations.run_termination import RunTerminator
from spawnmesh_session.operations.run_tokens import RunTokens, longest_token_life
from spawnmesh_session.operations.scheduled_spawns import ScheduledSpawner
from spawnmesh_session.operations.session_deletion import SessionDeleter
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn_breaker import SpawnBreaker
from spawnmesh_session.operations.spawn_saga import SpawnSaga
from spawnmesh_session.operations.spawn_undo import SpawnUndo
from spawnmesh_session.operations.spawns_in_progress import SpawnsInProgress
from spawnmesh_session.operations.tenant_purge import TenantPurge
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.messages import render_deletion
from spawnmesh_session.rpc.run_servicer import RunServicer
from spawnmesh_session.rpc.servicer import (
    ApprovalServicer,
    BudgetServicer,
    ScheduleServicer,
    SessionServicer,
    TenantServicer,
    TokenServicer,
)
from spawnmesh_session.rpc.spawn_session import scheduled_spawns_by
from spawnmesh_session.settings import SessionSettings
from spawnmesh_session.store import events, revoked_tokens, run_queue, runs, tenants

_CPU_WORK = ("spawnmesh_core.secrets", "spawnmesh_session.operations.approval_arguments")
_GATE_MARGIN_SECONDS = 5.0  # The spawn's own deadline ends first, and its error names the spawn.


@dataclass(frozen=True, slots=True)
class Components:
    """The parts that the server and the worker share."""

    database: Database
    listener: Listener
    sets: AttachmentSets
    transcripts: Transcripts
    watches: TranscriptWatches
    hooks: Hooks
    job_metrics: JobMetrics
    metrics: RunMetrics
    queuer: RunQueuer
    terminator: RunTerminator
    workers: CpuWorkers
    undo: SpawnUndo
    spawn_saga: SpawnSaga
    killer: FamilyKiller
    scheduled: ScheduledSpawner
    deleter: SessionDeleter
    participants: TenantParticipants
    settings_push: SettingsPush
    purge: TenantPurge
    gauges: Gauges
    audit: AuditLog


@asynccontextmanager
async def open_components(process: Process, settings: SessionSettings) -> AsyncIterator[Components]:
    """Open the connections to the database and the services, and build the operations."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="session",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
                dependencies=process.dependencies,
            )
        )
        direct_url = settings.database_direct_url or settings.database_url
        listener = await stack.enter_async_context(
            open_listener(
                direct_url,
                name="session listener",
                channels=(
                    run_queue.CHANNEL,
                    runs.CHANGE_CHANNEL,
                    events.CHANNEL,
                    JOBS_CHANNEL,
                    revoked_tokens.CHANNEL,
                    tenants.CALL_LIMITS_CHANNEL,
                    OPERATIONS_CHANNEL,
                ),
            )
        )
        blob = await stack.enter_async_context(
            open_peer(process, "attachment-blob", settings.attachment_blob_target)
        )
        transcript = await stack.enter_async_context(
            open_peer(process, "transcript", settings.transcript_target)
        )
        watches = await stack.enter_async_context(
            open_transcript_watches(process, settings.transcript_target, settings.step_timeout_seconds)
        )
        hook = await stack.enter_async_context(open_peer(process, "hook", settings.hook_target))
        router = await stack.enter_async_context(
            open_peer(process, "model-router", settings.model_router_target)
        )
        step_seconds = settings.step_timeout_seconds
        spawn_deadline = timedelta(seconds=settings.spawn_deadline_seconds)
        sets, transcripts = AttachmentSets(blob, step_seconds), Transcripts(transcript, step_seconds)
        hooks = Hooks(hook, step_seconds, settings.spawn_deadline_seconds + _GATE_MARGIN_SECONDS)
        peers = {"attachment-blob": blob, "transcript": transcript, "hook": hook, "model-router": router}
        participants = tuple(ParticipantClient(name, peer, step_seconds) for name, peer in peers.items())
        meter = process.metrics.meter
        audit = await stack.enter_async_context(open_audit_log(database, meter, process.logger))
        workers = await stack.enter_async_context(
            open_cpu_workers(
                settings,
                meter,
                modules=_CPU_WORK,
            )
        )
        metrics = RunMetrics(meter)
        queuer = RunQueuer(settings.max_run_attempts)
        token_ttl = longest_token_life(timedelta(seconds=settings.lease_ttl_seconds))
        terminator = RunTerminator(queuer, metrics, token_ttl)
        undo = SpawnUndo(database, sets, transcripts)
        in_progress = SpawnsInProgress(settings.max_spawns_without_caller)
        stack.push_async_callback(in_progress.finish, settings.drain_grace_seconds)
        spawn_saga = SpawnSaga(
            database,
            listener,
            sets,
            transcripts,
            hooks,
            queuer,
            undo,
            in_progress,
            SpawnBreaker(),
            deadline=spawn_deadline,
            fork_token_count=settings.fork_token_count,
        )
        killer = FamilyKiller(database, terminator, undo, transcripts)
        deleter = SessionDeleter(database, killer, sets, transcripts)
        max_push = timedelta(seconds=3 * step_seconds)  # Much longer than its calls may take.
        yield Components(
            database,
            listener,
            sets,
            transcripts,
            watches,
            hooks,
            JobMetrics(process.metrics.meter),
            metrics,
            queuer,
            terminator,
            workers,
            undo,
            spawn_saga,
            killer,
            ScheduledSpawner(database, killer, scheduled_spawns_by(spawn_saga), audit.record),
            deleter,
            participants,
            SettingsPush(database, participants, max_push),
            TenantPurge(database, killer, participants, spawn_deadline, audit.record),
            Gauges(database, process.metrics.meter),
            audit,
        )


@asynccontextmanager
async def open_service(process: Process, settings: SessionSettings) -> AsyncIterator[MeshServer]:
    """Build the gRPC server with everything registered and nothing started."""
    async with (
        open_components(process, settings) as components,
        open_revocation_feed(components.database, components.listener, process.revoked) as revocations,
        open_call_limits_feed(
            components.database, components.listener, process.call_limits, settings.call_limits_ceiling
        ) as call_limits,
        open_service_heartbeats(components.database) as heartbeats,
    ):
        server = make_server(process, components, settings, revocations, call_limits)
        server.on_drain(heartbeats.stop)  # A replica that drains refuses heartbeats of runs.
        yield server


def make_server(
    process: Process,
    components: Components,
    settings: SessionSettings,
    revocations: RevocationFeed,
    call_limits: CallLimitsFeed,
) -> MeshServer:
    """Build the server on these components, with everything registered and nothing started."""
    deps = make_dependencies(process, components, settings, revocations, call_limits)
    server = build_server(process, translate_errors=(translate,), record=components.audit.record)
    add_SessionServiceServicer_to_server(SessionServicer(deps), server)
    add_RunServiceServicer_to_server(RunServicer(deps), server)
    add_ApprovalServiceServicer_to_server(ApprovalServicer(deps), server)
    add_BudgetServiceServicer_to_server(BudgetServicer(deps), server)
    add_ScheduleServiceServicer_to_server(ScheduleServicer(deps), server)
    add_TenantServiceServicer_to_server(TenantServicer(deps), server)
    add_jobs(server, components.database)
    add_operations(server, deps.operations, caller_role)
    server.serve_also_as(GOOGLE_NAME, OPERATION_SERVICE)
    add_audit(server, components.database, "session", caller_scope)
    add_TokenServiceServicer_to_server(TokenServicer(deps), server)
    server.on_drain(revocations.close)
    server.on_drain(call_limits.close)
    server.on_drain(deps.run_changes.close)
    add_deployment(
        server,
        components.database,
        "session",
        workers=["session-worker"],
        dependencies=process.dependencies,
    )
    return server


def make_dependencies(
    process: Process,
    components: Components,
    settings: SessionSettings,
    revocations: RevocationFeed,
    call_limits: CallLimitsFeed,
) -> Dependencies:
    """Build what the RPCs share. Raise SystemExit with one line without a key for run tokens."""
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to sign tokens of runs")
    database, terminator, metrics = components.database, components.terminator, components.metrics
    lease_ttl = timedelta(seconds=settings.lease_ttl_seconds)
    watch_limit = FairLimiter(
        LimiterPolicy("reads of watches", "", max(1, settings.database_max_connections // 2))
    )
    return Dependencies(
        database=database,
        listener=components.listener,
        spawn_saga=components.spawn_saga,
        finalize_saga=FinalizeSaga(
            database, components.transcripts, components.hooks, terminator, components.workers, metrics
        ),
        claimer=RunClaimer(
            database,
            components.listener,
            terminator,
            metrics,
            lease_ttl,
            ClaimLimits(settings.database_max_connections),
            ClaimLines(),
        ),
        terminator=terminator,
        killer=components.killer,
        interrupter=RunInterrupter(database, terminator),
        publisher=FilePublisher(database, components.sets),
        requester=ApprovalRequester(database),
        decider=ApprovalDecider(database, components.workers),
        budgets=BudgetChanger(database),
        budget_waits=BudgetWaits(database, terminator),
        model_calls=ModelCallCounter(database),
        scheduled=components.scheduled,
        sender=MessageSender(database, components.queuer),
        run_changes=RunChangeHints(components.listener),
        deleter=components.deleter,
        settings_push=components.settings_push,
        participants=components.participants,
        metrics=metrics,
        run_tokens=RunTokens(process.minter, lease_ttl),
        lease_ttl=lease_ttl,
        revocations=revocations,
        call_limits=call_limits,
        tenant_classes=settings.tenant_classes,
        max_token_lifetime=timedelta(seconds=settings.max_token_lifetime_seconds),
        watch_limit=watch_limit,
        operations=Operations("session", database, components.listener, OPERATION_TYPES),
        watch_source=WatchSource(database, components.listener, watch_limit, components.watches),
    )


def make_sweeper(components: Components, settings: SessionSettings) -> Sweeper:
    """Build the sweep on these components, which is not running."""
    database, deleter = components.database, components.deleter
    return Sweeper(
        database,
        components.terminator,
        ApprovalDecider(database, components.workers),
        BudgetWaits(database, components.terminator),
        RetentionJob(
            database,
            deleter,
            timedelta(seconds=settings.retention_interval_seconds),
            components.audit.record,
        ),
        timedelta(seconds=settings.lease_ttl_seconds),
        settings.sweep_interval_seconds,
        components.gauges,
    )


def make_job_worker(components: Components, settings: SessionSettings) -> JobWorker:
    """Build the worker of the jobs on these components, which is not running."""
    kinds = make_kinds(
        FollowUps(components.database, components.sets, components.transcripts, components.hooks),
        RunEndPublisher(components.database, components.hooks),
        SessionEventPublisher(components.database, components.hooks),
        CleanUps(
            components.database,
            components.undo,
            components.deleter,
            components.settings_push,
        ),
        BudgetJobs(
            ModelCallCounter(components.database),
            BudgetWaits(components.database, components.terminator),
        ),
        ScheduleJobs(components.database, components.scheduled),
        OperationRunner(
            "session",
            components.database,
            TenantSteps(components.database, components.purge, render_deletion).by_method(),
        ),
        settings.worker_concurrency,
    )
    return JobWorker(
        components.database,
        components.listener,
        kinds,
        run_for_tenant,
        components.job_metrics,
        grace_seconds=settings.drain_grace_seconds,
    )


async def work(process: Process, settings: SessionSettings) -> None:
    """Run the worker until cancelled."""
    async with open_components(process, settings) as components:
        await run_worker(
            components.database,
            make_job_worker(components, settings),
            make_sweeper(components, settings),
        )
