"""Services for a worker in the test's own process: its runs, their transcript and the router."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text, TokenUsage
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_rpc
from spawnmesh.model_router.v1.generation_pb2 import Completion
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import (
    ModelRouterServiceServicer,
    add_ModelRouterServiceServicer_to_server,
)
from spawnmesh.session.v1 import (
    budget_pb2,
    session_pb2,
)
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.budget_service_pb2_grpc import (
    BudgetServiceServicer,
    add_BudgetServiceServicer_to_server,
)
from spawnmesh.session.v1.run_service_pb2_grpc import (
    RunServiceServicer,
    add_RunServiceServicer_to_server,
)
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_client import MeshError, connect
from spawnmesh_client.worker import Worker
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.server import MeshServer
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import served
from tests.support.waiting import eventually


@dataclass
class WorkerRuns(RunServiceServicer):
    """Hand the runs out, and record the calls for them."""

    minter: TokenMinter
    waiting: asyncio.Queue[pb.ClaimedRun] = field(default_factory=asyncio.Queue)
    inbox: list[pb.InboxMessage] = field(default_factory=list)
    outcomes: list[pb.FinalizeRunResponse] = field(default_factory=list)
    interrupt: "pb.Interrupt.ValueType" = pb.INTERRUPT_UNSPECIFIED
    calls: list[Any] = field(default_factory=list)
    hints: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    watchers: list[str] = field(default_factory=list)
    watch_refusal: MeshError | None = None
    answers_heartbeats: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.answers_heartbeats.set()

    def queue(
        self, lease_seconds: float, *, is_interrupted: bool = False, usage: TokenUsage | None = None
    ) -> None:
        """Queue a run of the agent `clerk`."""
        run_id, session_id = new_id(IdKind.RUN), new_id(IdKind.SESSION)
        claimed = pb.ClaimedRun(run_token=self.minter.run_token("acme", session_id, run_id, 1, 300))
        claimed.run.run_id, claimed.run.epoch = run_id, 1
        claimed.session.session_id, claimed.agent.agent_id = session_id, "clerk"
        claimed.lease_ttl.FromMilliseconds(round(lease_seconds * 1000))
        if usage is not None:
            claimed.run.usage.CopyFrom(usage)
        if is_interrupted:
            claimed.run.interrupt_time.GetCurrentTime()
        self.waiting.put_nowait(claimed)

    def named(self, kind: type[Any]) -> list[Any]:
        """Return the requests of this kind."""
        return [request for request in self.calls if isinstance(request, kind)]

    async def ClaimRuns(self, request: Any, context: Any) -> Any:
        return pb.ClaimRunsResponse(runs=[await self.waiting.get()])

    async def HeartbeatRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        interrupt = self.interrupt
        await self.answers_heartbeats.wait()
        return pb.HeartbeatRunResponse(interrupt=interrupt)

    async def WatchRunChanges(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.watchers.append(request.runner_id)
        if self.watch_refusal is not None:
            raise self.watch_refusal
        while True:
            await self.hints.get()
            yield pb.WatchRunChangesResponse()

    async def ListInbox(self, request: Any, context: Any) -> Any:
        return pb.ListInboxResponse(messages=self.inbox)

    async def AcknowledgeInbox(self, request: Any, context: Any) -> Any:
        self.inbox = [message for message in self.inbox if message.key not in request.keys]
        return pb.AcknowledgeInboxResponse()

    async def FinalizeRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        accepted = pb.FinalizeRunResponse(accepted=pb.Accepted())
        return self.outcomes.pop(0) if self.outcomes else accepted

    async def EndInterruptedRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        return pb.EndInterruptedRunResponse()

    async def ReleaseRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        return pb.ReleaseRunResponse()

    async def FailRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        return pb.FailRunResponse()


@dataclass
class FakeAwaited(BudgetServiceServicer):
    """Answer each call of AwaitBudget with the next run, and record the requests."""

    answers: list[session_pb2.Run | MeshError] = field(default_factory=list)
    requests: list[budget_pb2.AwaitBudgetRequest] = field(default_factory=list)

    async def AwaitBudget(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, MeshError):
            raise answer
        return budget_pb2.AwaitBudgetResponse(run=answer)


@dataclass
class FakeRouter(ModelRouterServiceServicer):
    """Answer each call of Generate with the next usage, or refuse it."""

    answers: list[TokenUsage | MeshError] = field(default_factory=list)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, MeshError):
            raise answer
        said = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text="said"))], usage=answer)
        failed = TokenUsage(input_token_count=1, cost_micros=10, price_version="old")
        completion = Completion(message=said, failed_usage=failed)
        yield router_rpc.GenerateResponse(events=[router_rpc.GenerationEvent(completion=completion)])


@dataclass
class WorkerTranscript(TranscriptServiceServicer):
    """Keep the texts of the messages."""

    texts: list[str] = field(default_factory=list)
    writer_count: int = 0
    released_count: int = 0

    async def AcquireWriter(self, request: Any, context: Any) -> Any:
        self.writer_count += 1
        return transcript_rpc.AcquireWriterResponse()

    async def ReleaseWriter(self, request: Any, context: Any) -> Any:
        self.released_count += 1
        return transcript_rpc.ReleaseWriterResponse()

    async def ListEntries(self, request: Any, context: Any) -> Any:
        return transcript_rpc.ListEntriesResponse()

    async def AppendEntries(self, request: Any, context: Any) -> Any:
        self.texts += [entry.message.content[0].text.text for entry in request.entries]
        return transcript_rpc.AppendEntriesResponse(
            entries=[transcript_rpc.AppendedEntry(entry_id=new_id(IdKind.ENTRY))]
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """The services, and the worker that runs against them."""

    runs: WorkerRuns
    transcript: WorkerTranscript
    worker: Worker
    budgets: FakeAwaited
    router: FakeRouter

    async def ended(self) -> pb.EndInterruptedRunRequest:
        """Return the request that ended the interrupted run. Nothing else may have ended it."""
        (request,) = await eventually(lambda: self.runs.named(pb.EndInterruptedRunRequest))
        assert self.runs.named(pb.FailRunRequest) == []
        return request

    def interrupt(self, interrupt: "pb.Interrupt.ValueType") -> None:
        """Interrupt the runs, and send the hint."""
        self.runs.interrupt = interrupt
        self.runs.hints.put_nowait(None)


@pytest.fixture
async def stage(keys: Path) -> AsyncIterator[Stage]:
    """Serve the services, and connect a worker to them."""
    runs = WorkerRuns(TokenMinter("session", keys / "session.pem"))
    transcript = WorkerTranscript()

    budgets, router = FakeAwaited(), FakeRouter()

    def add_runs(server: MeshServer) -> None:
        add_RunServiceServicer_to_server(runs, server)
        add_BudgetServiceServicer_to_server(budgets, server)

    def add_router(server: MeshServer) -> None:
        add_ModelRouterServiceServicer_to_server(router, server)

    def add_transcript(server: MeshServer) -> None:
        add_TranscriptServiceServicer_to_server(transcript, server)

    token = TokenMinter("client", keys / "client.pem").runner_token("ours", 300, tenants=["acme"])
    async with (
        served("session", keys, add_runs) as session_target,
        served("transcript", keys, add_transcript) as transcript_target,
        served("model-router", keys, add_router) as router_target,
    ):
        targets = {
            "session": session_target, "transcript": transcript_target, "model-router": router_target,
        }  # fmt: skip
        async with connect(targets=targets, token=token) as mesh:
            yield Stage(runs, transcript, Worker(mesh, name="ours"), budgets, router)


@asynccontextmanager
async def working(stage: Stage) -> AsyncIterator[None]:
    """Run the worker during the block, and stop it as a signal does."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(stage.worker.run())
        try:
            yield
        finally:
            stage.worker.stop()
