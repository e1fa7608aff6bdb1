"""The service put together: settings, pool, peers, sagas, servicers, server; and the worker beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from procrastinate import App
from spawnmesh.session.v1.run_service_pb2_grpc import add_RunServiceServicer_to_server
from spawnmesh.session.v1.session_service_pb2_grpc import add_SessionServiceServicer_to_server
from spawnmesh.session.v1.tenant_service_pb2_grpc import add_TenantServiceServicer_to_server
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.deployment import add_deployment
from spawnmesh_postgres.errors import translate
from spawnmesh_postgres.jobs import open_job_app, work_on_jobs
from spawnmesh_postgres.listener import Listener, open_listener
from spawnmesh_postgres.worker_beats import beat_for_ever
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server

from spawnmesh_session.jobs import add_tasks
from spawnmesh_session.operations.archive import Archive
from spawnmesh_session.operations.backlog import Backlog
from spawnmesh_session.operations.claim import Leases
from spawnmesh_session.operations.delete import Delete
from spawnmesh_session.operations.endings import Endings
from spawnmesh_session.operations.finalize import FinalizeSaga
from spawnmesh_session.operations.kill import Kill
from spawnmesh_session.operations.messages import Messages
from spawnmesh_session.operations.retain import Retain
from spawnmesh_session.operations.settings_push import SettingsPush
from spawnmesh_session.operations.spawn import SpawnSaga
from spawnmesh_session.operations.sweep import Sweep
from spawnmesh_session.operations.tell_ends import EndTellers
from spawnmesh_session.operations.tenant_deletion import TenantDeletion
from spawnmesh_session.operations.tenants import Tenants
from spawnmesh_session.operations.undo import SpawnUndo
from spawnmesh_session.operations.watch import Watch
from spawnmesh_session.peers import AttachmentSets, Hooks, ModelRouter, Transcripts
from spawnmesh_session.run_metrics import RunMetrics
from spawnmesh_session.servicers.run import RunServicer
from spawnmesh_session.servicers.session import SessionServicer
from spawnmesh_session.servicers.tenant import TenantServicer
from spawnmesh_session.settings import SessionSettings
from spawnmesh_session.store import untold

_GATE_MARGIN_SECONDS = 5.0  # A spawn whose time is over says so itself, and not that a plugin was slow.


@dataclass(frozen=True, slots=True)
class Parts:
    """What the server and the worker have in common."""

    database: Database
    listener: Listener
    sets: AttachmentSets
    transcripts: Transcripts
    hooks: Hooks
    job_app: App
    endings: Endings
    run_metrics: RunMetrics
    undo: SpawnUndo
    spawn: SpawnSaga
    kill: Kill
    delete: Delete
    deletion: TenantDeletion
    push: SettingsPush
    backlog: Backlog


@asynccontextmanager
async def open_parts(process: Process, settings: SessionSettings) -> AsyncIterator[Parts]:
    """Connections to database and peers, and what is done with them; nothing served, nothing running."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                name="session",
                max_connections=settings.database_max_connections,
                pooled=bool(settings.database_direct_url),
                meter=process.metrics.meter,
            )
        )
        listener = await stack.enter_async_context(
            open_listener(
                settings.database_direct_url or settings.database_url,
                name="session listener",
                channels=("run_queued", "session_changed", untold.CHANNEL),
            )
        )
        step = settings.step_timeout_seconds
        blob = await stack.enter_async_context(open_peer(process, "attachment-blob", settings.attachment_blob_target))
        transcript = await stack.enter_async_context(open_peer(process, "transcript", settings.transcript_target))
        hook = await stack.enter_async_context(open_peer(process, "hook", settings.hook_target))
        router = await stack.enter_async_context(open_peer(process, "model-router", settings.model_router_target))
        sets, transcripts = AttachmentSets(blob, step), Transcripts(transcript, step)
        hooks = Hooks(hook, step, settings.spawn_deadline_seconds + _GATE_MARGIN_SECONDS)
        job_app = open_job_app(settings.database_direct_url or settings.database_url, name="session jobs")
        add_tasks(job_app, database, sets, transcripts, hooks)
        run_metrics = RunMetrics(process.metrics.meter)
        endings = Endings(job_app, settings.max_run_attempts, run_metrics)
        undo = SpawnUndo(database, sets, transcripts, job_app)
        kill = Kill(database, endings, undo, transcripts)
        spawn_deadline = timedelta(seconds=settings.spawn_deadline_seconds)
        spawn = SpawnSaga(
            database,
            listener,
            sets,
            transcripts,
            hooks,
            endings,
            undo,
            deadline=spawn_deadline,
            fork_token_count=settings.fork_token_count,
        )
        delete = Delete(database, kill, sets, transcripts)
        model_router = ModelRouter(router, step)
        deletion = TenantDeletion(database, kill, sets, transcripts, hooks, model_router, spawn_deadline)
        longest_push = timedelta(seconds=3 * step)  # Well beyond what its calls may take.
        push = SettingsPush(database, sets, transcripts, hooks, model_router, longest_push)
        backlog = Backlog(database, process.metrics.meter)
        yield Parts(
            database,
            listener,
            sets,
            transcripts,
            hooks,
            job_app,
            endings,
            run_metrics,
            undo,
            spawn,
            kill,
            delete,
            deletion,
            push,
            backlog,
        )


@asynccontextmanager
async def open_service(process: Process, settings: SessionSettings) -> AsyncIterator[MeshServer]:
    """The gRPC server, with everything registered and nothing started."""
    async with open_parts(process, settings) as parts:
        yield server_of(process, parts, settings)


def server_of(process: Process, parts: Parts, settings: SessionSettings) -> MeshServer:
    """The server with these parts, with everything registered and nothing started."""
    if process.minter is None:
        raise RuntimeError("session mints run tokens and needs SESSION_SIGNING_KEY_FILE")
    lease_ttl = timedelta(seconds=settings.lease_ttl_seconds)
    leases = Leases(parts.database, parts.listener, lease_ttl, parts.run_metrics, parts.endings)
    finalize = FinalizeSaga(parts.database, parts.transcripts, parts.hooks, parts.endings, parts.run_metrics)
    watch = Watch(parts.database, parts.listener, asyncio.Semaphore(max(1, settings.database_max_connections // 2)))
    messages = Messages(parts.database, parts.endings)
    archive = Archive(parts.database, parts.endings)
    tenants = Tenants(parts.database, parts.push)
    server = build_server(process, translate_errors=(translate,))
    add_SessionServiceServicer_to_server(
        SessionServicer(parts.database, parts.spawn, watch, messages, parts.kill, archive, parts.delete), server
    )
    add_RunServiceServicer_to_server(RunServicer(leases, finalize, process.minter), server)
    add_TenantServiceServicer_to_server(TenantServicer(tenants, parts.deletion), server)
    add_deployment(server, parts.database, "session", workers=["session-worker"])
    return server


@asynccontextmanager
async def open_sweep(process: Process, settings: SessionSettings) -> AsyncIterator[Sweep]:
    """The sweep of the worker, not running."""
    async with open_parts(process, settings) as parts:
        yield sweep_of(parts, settings)


def sweep_of(parts: Parts, settings: SessionSettings) -> Sweep:
    """The sweep with these parts, not running."""
    retain = Retain(parts.database, parts.delete, timedelta(seconds=settings.retention_interval_seconds))
    return Sweep(
        parts.database,
        parts.endings,
        parts.undo,
        parts.delete,
        retain,
        parts.deletion,
        parts.push,
        settings.sweep_interval_seconds,
        parts.backlog,
    )


def tellers_of(parts: Parts, settings: SessionSettings) -> EndTellers:
    """What tells of ends with these parts, not running; it has as many places as jobs have, and they are its own."""
    return EndTellers(parts.database, parts.listener, parts.hooks, settings.worker_concurrency)


async def work(process: Process, settings: SessionSettings) -> None:
    """Works on jobs, tells of ends and sweeps, until cancelled."""
    async with open_parts(process, settings) as parts, asyncio.TaskGroup() as tasks:
        tasks.create_task(beat_for_ever(parts.database, "session-worker"), name="beat")
        tasks.create_task(sweep_of(parts, settings).run_for_ever(), name="sweep")
        tasks.create_task(tellers_of(parts, settings).tell_for_ever(), name="tell ends")
        jobs = work_on_jobs(
            parts.job_app, concurrency=settings.worker_concurrency, grace_seconds=settings.drain_grace_seconds
        )
        tasks.create_task(jobs, name="jobs")
