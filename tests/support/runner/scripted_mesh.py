"""The peers of a runner, whose answers a test scripts."""

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1 import model_router_service_pb2_grpc as router_grpc
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerationEvent
from spawnmesh.session.v1 import approval_pb2, session_pb2, tenant_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import run_service_pb2_grpc as run_grpc
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import session_service_pb2_grpc as session_grpc
from spawnmesh.transcript.v1 import context_pb2, entry_pb2
from spawnmesh.transcript.v1 import file_service_pb2_grpc as file_grpc
from spawnmesh.transcript.v1 import live_service_pb2 as live_pb
from spawnmesh.transcript.v1 import live_service_pb2_grpc as live_grpc
from spawnmesh.transcript.v1 import search_service_pb2_grpc as search_grpc
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1 import transcript_service_pb2_grpc as transcript_grpc
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.runner.approval_fixtures import ScriptedApprovals
from tests.support.runner.blobs import ScriptedBlobs
from tests.support.runner.budgets import BudgetScript
from tests.support.runner.hook_fixtures import ScriptedHooks
from tests.support.runner.listing import Listing
from tests.support.runner.models import ScriptedModels
from tests.support.runner.outputs import PublishFiles, ScriptedOutputs
from tests.support.runner.run_events import ReportRunEvents, RunEventReports
from tests.support.runner.sessions import ScriptedSessions
from tests.support.runner.transcripts import (
    ScriptedDrafts,
    ScriptedFiles,
    ScriptedSearches,
    ScriptedTranscripts,
)

TENANT = "acme"


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


SPAWN_SPAN_ID = "b7ad6b7169203331"


ACCEPTED = run_pb.FinalizeRunResponse(accepted=run_pb.Accepted())


@dataclass(slots=True)
class ScriptedMesh:
    """The scripted behaviour of the peers of one session, and a record of the calls."""

    minter: TokenMinter
    session_id: str = field(default_factory=lambda: new_id(IdKind.SESSION))
    run_id: str = field(default_factory=lambda: new_id(IdKind.RUN))
    set_id: str = field(default_factory=lambda: new_id(IdKind.ATTACHMENT_SET))
    answers: deque[message_pb2.Message | MeshError] = field(default_factory=deque)
    outcomes: deque[run_pb.FinalizeRunResponse | MeshError] = field(default_factory=deque)
    inbox: list[run_pb.InboxMessage] = field(default_factory=list)
    inbox_page: int = 100
    inbox_read_count: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, deque[MeshError]] = field(default_factory=dict)
    lease_lost: bool = False
    approvals: ScriptedApprovals = field(default_factory=ScriptedApprovals)
    budgets: BudgetScript = field(default_factory=BudgetScript)
    outputs: ScriptedOutputs = field(default_factory=ScriptedOutputs)
    hold_model: asyncio.Event | None = None
    spoken_first: tuple[str | GenerationEvent, ...] = ()
    """The pieces of text that come before the model is held."""
    run_events: RunEventReports = field(default_factory=RunEventReports)
    drafts: dict[int, str] = field(default_factory=dict)
    draft_pieces: dict[int, list[DraftPiece]] = field(default_factory=lambda: defaultdict(list))
    draft_calls: list[live_pb.WriteDraftRequest] = field(default_factory=list)
    hold_draft: asyncio.Event | None = None
    max_draft_bytes: int = 1024 * 1024
    interrupt: run_pb.Interrupt.ValueType = run_pb.INTERRUPT_UNSPECIFIED
    hold_wait: asyncio.Event | None = None
    wait_called: asyncio.Event = field(default_factory=asyncio.Event)
    waits: list[session_pb.WaitSessionRequest] = field(default_factory=list)
    child_states: deque[session_pb2.RunState.ValueType] = field(default_factory=deque)
    """The states of the child at the ends of the first waits."""
    changes: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    """The hints of the stream. False ends it without one."""
    interrupted: run_pb.EndInterruptedRunRequest | None = None
    router_wait_seconds: float = 0.0
    """The router calls a model so long after the call, as if the model were in its cooldown."""
    on_generate: Callable[[], object] = lambda: None
    on_read_file: Callable[[], object] = lambda: None
    on_revise: Callable[[run_pb.FinalizeRunRequest], Awaitable[None]] | None = None
    model_called: asyncio.Event = field(default_factory=asyncio.Event)
    queue: asyncio.Queue[run_pb.ClaimedRun] = field(default_factory=asyncio.Queue)
    entries: list[entry_pb2.Entry] = field(default_factory=list)
    appended: dict[str, tuple[bytes, list[entry_pb2.Entry]]] = field(default_factory=dict)
    writer_epoch: int = 0
    superseded: set[str] = field(default_factory=set)
    stubbed: list[context_pb2.StubbedResult] = field(default_factory=list)
    assembled: list[transcript_pb.AssembleContextRequest] = field(default_factory=list)
    prompts: list[router_pb.GenerateRequest] = field(default_factory=list)
    spawns: dict[str, session_pb.SpawnSessionRequest] = field(default_factory=dict)
    provisioning_request_ids: set[str] = field(default_factory=set)
    spawn_traces: list[str] = field(default_factory=list)
    finalized: run_pb.FinalizeRunRequest | None = None
    failed: run_pb.FailRunRequest | None = None
    window_seqs: list[int] = field(default_factory=list)
    closed_window_count: int = 0
    claim_sizes: list[int] = field(default_factory=list)
    claim_waits: list[int] = field(default_factory=list)
    claimed_by: list[str] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    delays: list[run_pb.ReleaseDelay] = field(default_factory=list)
    released_claims: list[int] = field(default_factory=list)
    model_cancelled: bool = False
    listing: Listing = field(default_factory=Listing)
    first_epoch: int = 1
    token_seconds: float = 600.0
    hooks: ScriptedHooks = field(default_factory=ScriptedHooks)
    trace_content: bool = False

    def attachment_files(self) -> list[attachment_pb2.AttachmentFile]:
        """Return the files that the session was spawned with."""
        return [
            attachment_pb2.AttachmentFile(
                name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
            )
            for name, data in self.files.items()
        ]

    def queue_run(
        self,
        *,
        epoch: int = 1,
        tools: tuple[str, ...] = (),
        max_turns: int = 0,
        lease_seconds: float = 60.0,
        mcp_servers: tuple[str, ...] = (),
        approval: approval_pb2.ApprovalPolicy | None = None,
    ) -> None:
        """Queue the run for a claim."""
        lease = Duration()
        lease.FromMilliseconds(int(lease_seconds * 1000))
        session = session_pb2.Session(session_id=self.session_id, state=session_pb2.SESSION_STATE_ACTIVE)
        session.budget_session_ids.extend(self.budgets.shared)
        if self.files:
            session.receipt.set_id = self.set_id
            session.receipt.rel_dir = f".spawnmesh/attachments/{self.set_id}"
            session.receipt.files.extend(self.attachment_files())
        claimed = run_pb.ClaimedRun(
            run=session_pb2.Run(
                run_id=self.run_id,
                session_id=self.session_id,
                epoch=epoch,
                attempt_count=epoch,
                output_file_count=self.outputs.file_count,
                reported_event_count=self.run_events.known_count,
            ),
            session=session,
            agent=tenant_pb2.AgentProfile(
                agent_id="default",
                system_prompt="Be brief.",
                tools=tools,
                max_turn_count=max_turns,
                mcp_servers=mcp_servers,
                approval=approval,
            ),
            tenant_id=TENANT,
            first_epoch=self.first_epoch,
            models=["scripted/one", "scripted/two"],
            run_token=self.token(epoch),
            lease_ttl=lease,
            traceparent=f"00-{TRACE_ID}-{SPAWN_SPAN_ID}-01",
            approval_count=len(self.approvals.requests),
        )
        claimed.deadline_time.GetCurrentTime()
        claimed.deadline_time.seconds += 600
        claimed.time_left.seconds = 600
        self.queue.put_nowait(claimed)

    def token(self, epoch: int) -> str:
        """Mint a token of the run."""
        return self.minter.run_token(TENANT, self.session_id, self.run_id, epoch, self.token_seconds)

    def change(self, interrupt: run_pb.Interrupt.ValueType) -> None:
        """Let heartbeats report the interrupt from now on, and tell the runner to send them."""
        self.interrupt = interrupt
        self.changes.put_nowait(True)

    def write(self, message: message_pb2.Message, *, epoch: int = 1) -> str:
        """Append a message to the transcript as the run at that epoch. Return its entry's id."""
        return self.store(entry_pb2.EntryBody(message=message), self.run_id, epoch).entry_id

    def store(self, body: entry_pb2.EntryBody, run_id: str = "", epoch: int = 0) -> entry_pb2.Entry:
        entry = entry_pb2.Entry(
            entry_id=new_id(IdKind.ENTRY),
            seq=len(self.entries) + 1,
            writer=entry_pb2.Writer(run_id=run_id, epoch=epoch),
            body=body,
        )
        self.entries.append(entry)
        return entry

    def messages(self, role: message_pb2.Role.ValueType) -> list[message_pb2.Message]:
        """Return the transcript's messages of a role."""
        return [entry.body.message for entry in self.entries if entry.body.message.role == role]

    def refuse_if_scripted(self, rpc: str) -> None:
        if self.refusals.get(rpc):
            raise self.refusals[rpc].popleft()

    def check_lease(self, epoch: int) -> None:
        caller = current_caller()
        assert (caller.run_id, caller.session_id, caller.epoch) == (self.run_id, self.session_id, epoch)
        if self.lease_lost or self.approvals.waiting_epoch == epoch:
            raise MeshError(Reason.RUN_LEASE_LOST, "the run is over")

    def judge(self, request: run_pb.FinalizeRunRequest) -> run_pb.FinalizeRunResponse | None:
        """Decide on a draft if `outcomes` is empty; None accepts it."""

    def add_to(self, server: Any) -> None:
        """Register all peers."""
        # To the type checker, a peer without some RPCs is abstract; the runner does not call those.
        sessions: Any = ScriptedSessions
        transcripts: Any = ScriptedTranscripts
        drafts: Any = ScriptedDrafts
        files: Any = ScriptedFiles
        blobs: Any = ScriptedBlobs
        models: Any = ScriptedModels
        run_grpc.add_RunServiceServicer_to_server(_Runs(self), server)
        session_grpc.add_SessionServiceServicer_to_server(sessions(self), server)
        transcript_grpc.add_TranscriptServiceServicer_to_server(transcripts(self), server)
        live_grpc.add_LiveServiceServicer_to_server(drafts(self), server)
        file_grpc.add_FileServiceServicer_to_server(files(self), server)
        search_grpc.add_SearchServiceServicer_to_server(ScriptedSearches(self), server)
        router_grpc.add_ModelRouterServiceServicer_to_server(models(self), server)
        blob_grpc.add_AttachmentBlobServiceServicer_to_server(blobs(self), server)
        self.budgets.add_to(server, self)
        self.hooks.add_to(server)


class _Runs(PublishFiles, ReportRunEvents, run_grpc.RunServiceServicer):
    def __init__(self, mesh: ScriptedMesh) -> None:
        self.mesh = mesh

    async def ClaimRuns(self, request: run_pb.ClaimRunsRequest, context: Any) -> run_pb.ClaimRunsResponse:
        self.mesh.refuse_if_scripted("ClaimRuns")
        self.mesh.claim_sizes.append(request.max_run_count)
        self.mesh.claim_waits.append(request.wait.seconds)
        self.mesh.reserved.append(request.reserved_run_count)
        try:
            async with asyncio.timeout(request.wait.ToMilliseconds() / 1000):
                run = await self.mesh.queue.get()
        except TimeoutError:
            return run_pb.ClaimRunsResponse()
        self.mesh.claimed_by.append(request.runner_id)
        run.enabled_hooks.extend(self.mesh.hooks.active)
        run.pending_message_count = len(self.mesh.inbox)
        run.trace_content = self.mesh.trace_content
        return run_pb.ClaimRunsResponse(runs=[run])

    async def HeartbeatRun(
        self, request: run_pb.HeartbeatRunRequest, context: Any
    ) -> run_pb.HeartbeatRunResponse:
        self.mesh.approvals.note_heartbeat(request.epoch)
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("HeartbeatRun")
        token = self.mesh.token(request.epoch)
        return run_pb.HeartbeatRunResponse(run_token=token, interrupt=self.mesh.interrupt)

    async def WatchRunChanges(
        self, request: run_pb.WatchRunChangesRequest, context: Any
    ) -> AsyncIterator[run_pb.WatchRunChangesResponse]:
        self.mesh.refuse_if_scripted("WatchRunChanges")
        yield run_pb.WatchRunChangesResponse()
        while await self.mesh.changes.get():
            yield run_pb.WatchRunChangesResponse()

    async def EndInterruptedRun(
        self, request: run_pb.EndInterruptedRunRequest, context: Any
    ) -> run_pb.EndInterruptedRunResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("EndInterruptedRun")
        self.mesh.interrupted = request
        return run_pb.EndInterruptedRunResponse()

    async def ListInbox(self, request: run_pb.ListInboxRequest, context: Any) -> run_pb.ListInboxResponse:
        self.mesh.inbox_read_count += 1
        listed = run_pb.ListInboxResponse(messages=self.mesh.inbox[: self.mesh.inbox_page])
        for message in listed.messages:
            message.append_request_id = message.append_request_id or message.key
        return listed

    async def AcknowledgeInbox(
        self, request: run_pb.AcknowledgeInboxRequest, context: Any
    ) -> run_pb.AcknowledgeInboxResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("AcknowledgeInbox")
        self.mesh.inbox = [message for message in self.mesh.inbox if message.key not in request.keys]
        if self.mesh.interrupt == run_pb.INTERRUPT_TURN:
            self.mesh.interrupt = run_pb.INTERRUPT_UNSPECIFIED
        return run_pb.AcknowledgeInboxResponse()

    async def FinalizeRun(
        self, request: run_pb.FinalizeRunRequest, context: Any
    ) -> run_pb.FinalizeRunResponse:
        mesh = self.mesh
        mesh.check_lease(request.epoch)
        outcome = mesh.outcomes.popleft() if mesh.outcomes else mesh.judge(request) or ACCEPTED
        if isinstance(outcome, MeshError):
            raise outcome
        if outcome.HasField("revise") and mesh.on_revise is not None:
            await mesh.on_revise(request)
        elif outcome.HasField("revise"):
            mesh.superseded.add(request.draft_entry_id)
            note = entry_pb2.SystemNote(text=outcome.revise.instruction, topic="revision")
            mesh.store(entry_pb2.EntryBody(system_note=note))
        elif outcome.HasField("accepted"):
            mesh.finalized = request
        return outcome

    async def FailRun(self, request: run_pb.FailRunRequest, context: Any) -> run_pb.FailRunResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.failed = request
        return run_pb.FailRunResponse()

    async def RequestApproval(
        self, request: approval_pb2.RequestApprovalRequest, context: Any
    ) -> approval_pb2.RequestApprovalResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("RequestApproval")
        return await self.mesh.approvals.request(request)

    async def TakeDecision(
        self, request: approval_pb2.TakeDecisionRequest, context: Any
    ) -> approval_pb2.TakeDecisionResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("TakeDecision")
        return self.mesh.approvals.take(request)

    async def ReleaseRun(self, request: run_pb.ReleaseRunRequest, context: Any) -> run_pb.ReleaseRunResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("ReleaseRun")
        self.mesh.released.append(request.epoch)
        if request.HasField("delay"):
            self.mesh.delays.append(request.delay)
        return run_pb.ReleaseRunResponse()
