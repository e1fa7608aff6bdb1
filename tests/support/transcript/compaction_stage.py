"""A transcript service and a hook service on real databases, with a scripted model."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.jobs.v1 import job_pb2
from spawnmesh.jobs.v1 import job_service_pb2 as jobs_pb
from spawnmesh.jobs.v1.job_service_pb2_grpc import JobServiceStub
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1 import model_router_service_pb2_grpc as router_grpc
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service as open_hook_service
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_transcript.app import open_service, open_worker
from spawnmesh_transcript.jobs.summary_publication import SummaryPublisher
from spawnmesh_transcript.jobs.worker import Worker
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.hook.fixtures import HookMesh, Tenant, hook_settings, open_mesh
from tests.support.hook.outbox import empty_outbox
from tests.support.hook.scripted_plugin import ScriptedPlugin
from tests.support.model_router.answers import said
from tests.support.serving import caller_at, client_tokens, served, shared_settings
from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.fixtures import Service, Session

NO_TAIL = FreshTail(message_count=1, token_count=1)
WORDS = " ".join(f"word{number}" for number in range(300))


class Model(router_grpc.ModelRouterServiceServicer):
    """A router with one model, which answers each summary with the next number."""

    def __init__(self) -> None:
        self.asked: list[router_pb.GenerateRequest] = []
        self.is_away = False

    async def Generate(self, request: router_pb.GenerateRequest, context: Any) -> Any:
        self.asked.append(request)
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no model")
        text = content_pb.ContentBlock(text=content_pb.Text(text=f"summary {len(self.asked)}"))
        message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[text], model="test/small")
        completion = generation_pb2.Completion(message=message, stop_reason=generation_pb2.STOP_REASON_END)
        yield said(completion=completion)


@dataclass(frozen=True)
class Stage:
    """A session with messages to summarize, and the plugins of its tenant."""

    session: Session
    tenant: Tenant
    mesh: HookMesh
    model: Model
    hook_target: str
    database: Database
    keys: Path
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    async def say(self, claim: WriterClaim) -> None:
        """Append four answers, of which the last stays fresh."""
        await self.session.append([assistant(f"{number} {WORDS}") for number in range(4)], claim=claim)

    async def acquire(self) -> WriterClaim:
        """Acquire the claim of another run."""
        return await self.session.acquire(next(self.epochs))

    async def compact(self, claim: WriterClaim | None = None) -> pb.CompactAsWriterResponse:
        """Append one summary as the run of the claim; without one, as a run that only compacts."""
        own = claim or await self.acquire()
        stub: Any = CompactionServiceStub(self.session.service.peer.channel)
        request = pb.CompactAsWriterRequest(session_id=self.session.session_id, claim=own, fresh_tail=NO_TAIL)
        try:
            with use_token(self.session.run_token(own)):
                answer: pb.CompactAsWriterResponse = await self.session.service.peer.unary(
                    stub.CompactAsWriter, request, timeout_seconds=60
                )
        finally:
            if claim is None:
                await self.session.release(own)
        return answer

    async def plugin(self, name: str, *hooks: Any, answer: Any = None, **more: Any) -> ScriptedPlugin:
        plugin = await self.mesh.plugin(answer)
        await self.tenant.register(name, plugin.endpoint, *hooks, **more)
        return plugin

    @asynccontextmanager
    async def worker(
        self, stop: asyncio.Event | None = None, *, hook_target: str = ""
    ) -> AsyncIterator[Worker]:
        """Open a worker of the transcript service, which is not running."""
        settings = TranscriptSettings(
            **shared_settings("transcript", self.keys),
            database_url=self.session.service.dsn.app,
            hook_target=hook_target or self.hook_target,
            work_interval_seconds=3600.0,
        )
        async with (
            start_process("transcript", settings) as process,
            open_worker(process, settings, stop or asyncio.Event()) as worker,
        ):
            yield worker

    @asynccontextmanager
    async def working(self, *, hook_target: str = "") -> AsyncIterator[None]:
        """Run a worker of the transcript service during the block."""
        stop = asyncio.Event()
        async with self.worker(stop, hook_target=hook_target) as worker, asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.work())
            try:
                yield
            finally:
                stop.set()

    async def publish(self, *, hook_target: str = "") -> int:
        """Run the jobs that are due, as the worker does. Return the number of attempts."""
        async with self.worker(hook_target=hook_target) as worker:
            return await worker.jobs.run_due()

    async def jobs(self) -> list[job_pb2.Job]:
        """Return the background jobs of the tenant."""
        request = jobs_pb.ListJobsRequest(tenant_id=self.session.tenant_id)
        peer = self.session.service.peer
        with use_token(client_tokens(self.keys).admin_token("operator", 300)):
            answer: jobs_pb.ListJobsResponse = await peer.unary(
                JobServiceStub(peer.channel).ListJobs, request, timeout_seconds=60
            )
        return list(answer.jobs)

    async def has_no_jobs(self) -> bool:
        return not await self.jobs()

    async def retry(self, job: job_pb2.Job) -> None:
        """Make the job due now, as an operator does."""
        peer = self.session.service.peer
        request = jobs_pb.RetryJobRequest(tenant_id=job.tenant_id, kind=job.kind, key=job.key)
        with use_token(client_tokens(self.keys).admin_token("operator", 300)):
            await peer.unary(JobServiceStub(peer.channel).RetryJob, request, timeout_seconds=60)

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[SummaryPublisher]:
        """Give the handler of the jobs, as a worker has it."""
        settings = ProcessSettings(signing_key_file=self.keys / "transcript.pem", log_level="error")
        async with (
            start_process("transcript", settings) as process,
            open_peer(process, "hook", self.hook_target) as hooks,
        ):
            yield SummaryPublisher(self.database, hooks)


@pytest.fixture
async def compaction_mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def scripted_model() -> AsyncIterator[tuple[Model, str]]:
    # The type checker regards a servicer without all RPCs as abstract. No test calls the others.
    make: Any = Model
    served_model = make()
    server = grpc.aio.server()
    router_grpc.add_ModelRouterServiceServicer_to_server(served_model, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield served_model, f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def stage(
    service: Service,
    compaction_mesh: HookMesh,
    scripted_model: tuple[Model, str],
    databases: dict[str, ServiceDsn],
    keys: Path,
) -> AsyncIterator[Stage]:
    await empty_outbox(service.dsn)
    async with served("hook", hook_settings(databases["hook"], keys), open_hook_service) as hook_target:
        settings = TranscriptSettings(
            **shared_settings("transcript", keys),
            database_url=service.dsn.app,
            model_router_target=scripted_model[1],
            hook_target=hook_target,
        )
        calling = ProcessSettings(signing_key_file=keys / "session.pem", log_level="error")
        async with (
            served("transcript", settings, open_service) as target,
            caller_at(target, "transcript") as peer,
            start_process("session", calling) as process,
            open_peer(process, "hook", hook_target) as hooks,
            open_database(service.dsn.app, name="test", max_connections=2) as database,
        ):
            tenant = compaction_mesh.tenant(hooks)
            session = replace(service, peer=peer, target=target).session(tenant.tenant_id)
            await session.create()
            staged = Stage(session, tenant, compaction_mesh, scripted_model[0], hook_target, database, keys)
            await session.append([user("What now?")])
            claim = await session.acquire(1)
            await staged.say(claim)
            await session.release(claim)
            yield staged
