"""The transcript service with a scripted model router and hook service; transcripts to compact."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from google.longrunning.operations_pb2 import Operation
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.hook.v1 import compaction_pb2 as hook_pb
from spawnmesh.hook.v1 import hook_service_pb2 as hook_service_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer, add_HookServiceServicer_to_server
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import (
    ModelRouterServiceServicer,
    add_ModelRouterServiceServicer_to_server,
)
from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.caller import CallerKind, current_caller
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.attachment_blob.fixtures import BlobService
from tests.support.model_router.answers import said
from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.operating import idle_worker, result_of

SHORT = FreshTail(message_count=4, token_count=1_000_000)
"""At least four messages are fresh, and the tail moves in steps of one."""


USAGE = content_pb.TokenUsage(
    input_token_count=100,
    output_token_count=20,
    cache_read_token_count=30,
    cache_write_token_count=4,
    cost_micros=500,
    price_version="v1",
)
"""The usage that each model call reports."""


@dataclass
class Peers:
    """The answers of the router and the hook service, and the requests that they received."""

    answers: deque[str | MeshError] = field(default_factory=deque)
    """Answers of the model in order; "The gist." after the last."""
    stop_reason: generation_pb2.StopReason.ValueType = generation_pb2.STOP_REASON_END
    failed_usage: content_pb.TokenUsage | None = None
    prompts: list[router_pb.GenerateRequest] = field(default_factory=list)
    decision: hook_pb.CompactionDecision = field(
        default_factory=lambda: hook_pb.CompactionDecision(compact=hook_pb.Compact())
    )
    hook_failure: MeshError | None = None
    judged: list[hook_pb.BeforeCompactionEvent] = field(default_factory=list)
    published: list[Any] = field(default_factory=list)
    on_generate: Callable[[], Any] | None = None

    def prompt(self, number: int = -1) -> str:
        return self.prompts[number].messages[0].content[0].text.text


class _Router(ModelRouterServiceServicer):
    def __init__(self, peers: dict[str, Peers]) -> None:
        self.peers = peers

    async def Generate(
        self, request: router_pb.GenerateRequest, context: Any
    ) -> AsyncIterator[router_pb.GenerateResponse]:
        caller = current_caller()
        assert (caller.kind, caller.service) == (CallerKind.SERVICE, "transcript")
        peers = self.peers[caller.tenant_id]
        peers.prompts.append(request)
        if peers.on_generate:
            await peers.on_generate()
        answer = peers.answers.popleft() if peers.answers else "The gist."
        if isinstance(answer, MeshError):
            raise answer
        yield said(attempt_started=router_pb.AttemptStarted(number=1, model="scripted/one"))
        message = content_pb.Message(
            role=content_pb.ROLE_ASSISTANT,
            model="scripted/one",
            content=[
                content_pb.ContentBlock(thinking=content_pb.Thinking(text="let me see")),
                content_pb.ContentBlock(text=content_pb.Text(text=answer)),
            ],
        )
        message.usage.CopyFrom(USAGE)
        completion = generation_pb2.Completion(
            message=message, stop_reason=peers.stop_reason, failed_usage=peers.failed_usage
        )
        yield said(completion=completion)


class _Hooks(HookServiceServicer):
    def __init__(self, peers: dict[str, Peers]) -> None:
        self.peers = peers

    async def DispatchBeforeCompaction(
        self, request: hook_pb.DispatchBeforeCompactionRequest, context: Any
    ) -> hook_pb.DispatchBeforeCompactionResponse:
        peers = self.peers[current_caller().tenant_id]
        peers.judged.append(request.event)
        if peers.hook_failure:
            raise peers.hook_failure
        return hook_pb.DispatchBeforeCompactionResponse(decision=peers.decision, decided_by=["keeper"])

    async def PublishEvents(
        self, request: hook_service_pb.PublishEventsRequest, context: Any
    ) -> hook_service_pb.PublishEventsResponse:
        peers = self.peers[current_caller().tenant_id]
        if peers.hook_failure:
            raise peers.hook_failure
        peers.published += request.events
        return hook_service_pb.PublishEventsResponse(queued_count=len(request.events))


@dataclass(frozen=True)
class CompactionService:
    """The transcript service with both peers, which each tenant has for itself."""

    service: Service
    peers: dict[str, Peers]
    peers_target: str


@dataclass(frozen=True)
class Compacting:
    """A session of a tenant whose transcripts can be compacted."""

    session: Session
    peers: Peers

    async def set_threshold(self, version: int, percent: int, **more: Any) -> None:
        await self.session.prepare_tenant(version, compact_at_percent=percent, **more)

    async def compact(
        self,
        claim: pb.WriterClaim,
        *,
        tail: FreshTail = SHORT,
        models: Sequence[str] = (),
        token: str = "",
        timeout_seconds: float = 60,
    ) -> compaction_pb.CompactAsWriterResponse:
        """Append one summary as the run of the claim."""
        stub = CompactionServiceStub(self.session.service.peer.channel)
        request = compaction_pb.CompactAsWriterRequest(
            session_id=self.session.session_id, claim=claim, models=models, fresh_tail=tail
        )
        with use_token(token or self.session.run_token(claim)):
            return await self.session.service.peer.unary(
                stub.CompactAsWriter, request, timeout_seconds=timeout_seconds
            )

    async def start(
        self,
        *,
        tail: FreshTail = SHORT,
        models: Sequence[str] = (),
        request_id: str = "",
        token: str = "",
    ) -> Operation:
        """Start an operation as a client."""
        stub: Any = CompactionServiceStub(self.session.service.peer.channel)
        request = compaction_pb.CompactTranscriptRequest(
            session_id=self.session.session_id,
            models=models,
            fresh_tail=tail,
            request_id=request_id or secrets.token_hex(8),
        )
        with use_token(token or self.session.client_token()):
            started: Operation = await self.session.service.peer.unary(
                stub.CompactTranscript, request, timeout_seconds=60
            )
        return started

    async def compact_all(self, **asked: Any) -> compaction_pb.CompactTranscriptResponse:
        """Run an operation as a client, and return its response."""
        started = await self.start(**asked)
        response: compaction_pb.CompactTranscriptResponse = await result_of(
            self.session, started, compaction_pb.CompactTranscriptResponse
        )
        return response

    async def expand(
        self, entry_id: str, *, page_size: int = 0, page_token: str = "", token: str = ""
    ) -> compaction_pb.ExpandSummaryResponse:
        stub = CompactionServiceStub(self.session.service.peer.channel)
        request = compaction_pb.ExpandSummaryRequest(
            session_id=self.session.session_id, entry_id=entry_id, page_size=page_size, page_token=page_token
        )
        with use_token(token or self.session.client_token()):
            return await self.session.service.peer.unary(stub.ExpandSummary, request, timeout_seconds=60)

    async def context(self, token_budget: int = 100_000, **more: Any) -> pb.AssembleContextResponse:
        request = pb.AssembleContextRequest(
            session_id=self.session.session_id, token_budget=token_budget, **{"fresh_tail": SHORT, **more}
        )
        with use_token(self.session.client_token()):
            return await self.session.service.peer.unary(
                self.session.service.stub.AssembleContext, request, timeout_seconds=60
            )

    async def converse(self, claim: pb.WriterClaim, *, turns: int, name: str = "turn") -> None:
        """Return user messages and answers of about 110 tokens each."""
        for number in range(turns):
            await self.session.append([user(words(f"{name}-ask-{number}"))])
            await self.session.append([assistant(words(f"{name}-say-{number}"))], claim=claim)


def words(name: str, count: int = 100) -> str:
    """Return a text that begins with its name."""
    return f"{name} " + "word " * count


@asynccontextmanager
async def scripted_peers(keys: Path, peers: dict[str, Peers]) -> AsyncIterator[str]:
    @asynccontextmanager
    async def open_peers(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        router: Any = (
            # The type checker regards a servicer without all RPCs as abstract. No test calls the
            # others.
            _Router
        )
        hooks: Any = _Hooks
        add_ModelRouterServiceServicer_to_server(router(peers), server)
        add_HookServiceServicer_to_server(hooks(peers), server)
        yield server

    async with served("hook", ProcessSettings(**shared_settings("hook", keys)), open_peers) as target:
        yield target


@pytest.fixture(scope="module")
async def compaction_service(
    service: Service, blobs: BlobService, keys: Path
) -> AsyncIterator[CompactionService]:
    """A replica of the transcript service with a blob store, a router and a hook service."""
    peers: dict[str, Peers] = {}
    async with scripted_peers(keys, peers) as peers_target:
        settings = TranscriptSettings(
            **shared_settings("transcript", keys),
            database_url=service.dsn.app,
            attachment_blob_target=blobs.target,
            model_router_target=peers_target,
            hook_target=peers_target,
        )
        async with (
            served("transcript", settings, open_service) as target,
            caller_at(target, "transcript") as peer,
            idle_worker(settings) as jobs,
        ):
            served_here = replace(service, peer=peer, target=target, jobs=jobs)
            yield CompactionService(served_here, peers, peers_target)


@pytest.fixture
async def compacting(compaction_service: CompactionService) -> Compacting:
    """A session of a new tenant with a new transcript."""
    session = compaction_service.service.session()
    compaction_service.peers[session.tenant_id] = peers = Peers()
    await session.create()
    return Compacting(session, peers)


class Gate:
    """Blocks a model until the gate opens."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


def summary_of(entry: entry_pb.Entry) -> str:
    return entry.body.compaction.summary
