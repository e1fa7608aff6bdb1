"""A worker and the interrupts of its runs, against services in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.run_service_pb2_grpc import (
    RunServiceServicer,
    add_RunServiceServicer_to_server,
)
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_rpc
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import (
    TranscriptServiceServicer,
    add_TranscriptServiceServicer_to_server,
)
from spawnmesh_client import MeshError, Reason, connect, worker
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.server import MeshServer
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import served
from tests.support.waiting import eventually

INTERRUPTED = pb.FinalizeRunResponse(interrupted=pb.Interrupted())
HEARTBEAT_NEVER = 3600.0
HEARTBEAT_OFTEN = 3.0


@dataclass
class FakeRuns(RunServiceServicer):
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

    def queue(self, lease_seconds: float, *, is_interrupted: bool = False) -> None:
        """Queue a run of the agent `clerk`."""
        run_id, session_id = new_id(IdKind.RUN), new_id(IdKind.SESSION)
        claimed = pb.ClaimedRun(run_token=self.minter.run_token("acme", session_id, run_id, 1, 300))
        claimed.run.run_id, claimed.run.epoch = run_id, 1
        claimed.session.session_id, claimed.agent.agent_id = session_id, "clerk"
        claimed.lease_ttl.FromMilliseconds(round(lease_seconds * 1000))
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

    async def FailRun(self, request: Any, context: Any) -> Any:
        self.calls.append(request)
        return pb.FailRunResponse()


@dataclass
class FakeTranscript(TranscriptServiceServicer):
    """Keep the texts of the messages."""

    texts: list[str] = field(default_factory=list)
    writer_count: int = 0

    async def AcquireWriter(self, request: Any, context: Any) -> Any:
        self.writer_count += 1
        return transcript_rpc.AcquireWriterResponse()

    async def ReleaseWriter(self, request: Any, context: Any) -> Any:
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

    runs: FakeRuns
    transcript: FakeTranscript
    worker: Worker

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
    runs = FakeRuns(TokenMinter("session", keys / "session.pem"))
    transcript = FakeTranscript()

    def add_runs(server: MeshServer) -> None:
        add_RunServiceServicer_to_server(runs, server)

    def add_transcript(server: MeshServer) -> None:
        add_TranscriptServiceServicer_to_server(transcript, server)

    token = TokenMinter("client", keys / "client.pem").runner_token("ours", 300, tenants=["acme"])
    async with (
        served("session", keys, add_runs) as session_target,
        served("transcript", keys, add_transcript) as transcript_target,
        connect(targets={"session": session_target, "transcript": transcript_target}, token=token) as mesh,
    ):
        yield Stage(runs, transcript, Worker(mesh, name="ours"))


@asynccontextmanager
async def working(stage: Stage) -> AsyncIterator[None]:
    """Run the worker during the block, and stop it as a signal does."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(stage.worker.run())
        try:
            yield
        finally:
            stage.worker.stop()


async def test_interrupt_cancels_the_function_which_keeps_what_was_said(stage: Stage) -> None:
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        ctx.usage.output_token_count = 7
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ctx.append("It begins as")
        return "never"

    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_RUN)
        ended = await stage.ended()
    assert (ended.epoch, ended.usage.output_token_count) == (1, 7)
    assert stage.transcript.texts == ["It begins as"]
    assert stage.runs.named(pb.FinalizeRunRequest) == []


async def test_run_that_is_claimed_interrupted_is_ended_without_its_function(stage: Stage) -> None:
    called: list[RunContext] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        called.append(ctx)
        return "never"

    stage.runs.queue(HEARTBEAT_NEVER, is_interrupted=True)
    async with working(stage):
        await stage.ended()
    assert (called, stage.transcript.writer_count) == ([], 0)


async def test_answer_of_an_interrupted_run_is_its_last_word(stage: Stage) -> None:
    calls: list[str] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        calls.append(ctx.run_id)
        return "too late"

    stage.runs.outcomes = [INTERRUPTED]
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await stage.ended()
    assert (len(calls), stage.transcript.texts) == (1, ["too late"])


async def said_so_far() -> str:
    return "so far"


async def nothing() -> None:
    return None


async def failure() -> str:
    raise KeyError("clean-up")


@pytest.mark.parametrize(
    ("reaction", "offers"),
    [(said_so_far, ["so far"]), (nothing, []), (failure, [])],
    ids=["answer", "no-answer", "error"],
)
async def test_function_that_catches_its_cancellation_does_not_fail_the_run(
    stage: Stage, reaction: Callable[[], Any], offers: list[str]
) -> None:
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await reaction()

    stage.runs.outcomes = [INTERRUPTED]
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_RUN)
        await stage.ended()
    assert [offer.draft_text for offer in stage.runs.named(pb.FinalizeRunRequest)] == offers


async def test_urgent_message_is_noted_until_the_inbox_is_read(stage: Stage) -> None:
    began = asyncio.Event()
    seen: list[tuple[bool, str]] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        seen.append((ctx.has_urgent_message, ctx.task))
        began.set()
        await eventually(lambda: ctx.has_urgent_message)
        await ctx.read_inbox()
        seen.append((ctx.has_urgent_message, ctx.task))
        return "done"

    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.runs.inbox = [pb.InboxMessage(key="k", append_request_id="a", text="In French.")]
        stage.interrupt(pb.INTERRUPT_TURN)
        (offer,) = await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))
    assert (offer.draft_text, seen) == ("done", [(False, ""), (False, "In French.")])
    assert stage.transcript.texts == ["In French.", "done"]


async def test_heartbeat_of_before_the_reading_brings_no_urgent_message_back(stage: Stage) -> None:
    began, is_read, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    contexts: list[RunContext] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        contexts.append(ctx)
        began.set()
        await eventually(lambda: stage.runs.named(pb.HeartbeatRunRequest))
        await ctx.read_inbox()
        is_read.set()
        await go_on.wait()
        return "done"

    stage.runs.queue(HEARTBEAT_NEVER)
    stage.runs.answers_heartbeats.clear()
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_TURN)
        await is_read.wait()
        stage.runs.interrupt = pb.INTERRUPT_UNSPECIFIED
        stage.runs.answers_heartbeats.set()
        await eventually(lambda: len(stage.runs.named(pb.HeartbeatRunRequest)) == 2)
        assert not contexts[0].has_urgent_message
        go_on.set()
        await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))


async def test_one_stream_of_the_worker_renews_the_leases_of_all_runs(stage: Stage) -> None:
    began: list[str] = []
    go_on = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        began.append(ctx.run_id)
        await go_on.wait()
        return "done"

    for _ in range(2):
        stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await eventually(lambda: len(began) == 2)
        stage.runs.hints.put_nowait(None)
        await eventually(lambda: len(stage.runs.named(pb.HeartbeatRunRequest)) == 2)
        go_on.set()
        await eventually(lambda: len(stage.runs.named(pb.FinalizeRunRequest)) == 2)
    assert stage.runs.watchers == ["ours"]


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_RPC, Reason.CALLER_NOT_ALLOWED, Reason.TOKEN_EXPIRED])
async def test_heartbeats_interrupt_a_run_while_the_stream_is_refused(
    stage: Stage, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PAUSE_SECONDS", 0.01)
    stage.runs.watch_refusal = MeshError(reason, "no hints")

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> str:
        await asyncio.Event().wait()
        return "never"

    stage.runs.queue(HEARTBEAT_OFTEN)
    async with working(stage):
        await eventually(lambda: len(stage.runs.watchers) > 2)
        stage.runs.interrupt = pb.INTERRUPT_RUN
        await stage.ended()


async def test_stream_that_broke_is_opened_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_PAUSE_SECONDS", 0.01)
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    stage.runs.watch_refusal = MeshError(Reason.DRAINING, "stopping")
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        await eventually(lambda: stage.runs.watchers)
        stage.runs.watch_refusal = None
        stage.interrupt(pb.INTERRUPT_RUN)
        await stage.ended()
