"""The services that a runner calls."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceStub
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceStub
from spawnmesh.transcript.v1.file_service_pb2_grpc import FileServiceStub
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process

from spawnmesh_runner.settings import RunnerSettings

if TYPE_CHECKING:
    from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceAsyncStub
    from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceAsyncStub
    from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceAsyncStub
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub
    from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceAsyncStub
    from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceAsyncStub
    from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceAsyncStub
    from spawnmesh.transcript.v1.compaction_service_pb2_grpc import CompactionServiceAsyncStub
    from spawnmesh.transcript.v1.file_service_pb2_grpc import FileServiceAsyncStub
    from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceAsyncStub
    from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceAsyncStub
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Peers:
    """A peer for each service, and the stubs with its methods:

    `peers.session.unary(peers.runs.ListInbox, …)`.
    """

    session: Peer
    transcript: Peer
    model_router: Peer
    attachment_blob: Peer
    hook: Peer
    runs: "RunServiceAsyncStub"
    budgets: "BudgetServiceAsyncStub"
    sessions: "SessionServiceAsyncStub"
    transcripts: "TranscriptServiceAsyncStub"
    live: "LiveServiceAsyncStub"
    files: "FileServiceAsyncStub"
    searches: "SearchServiceAsyncStub"
    compactions: "CompactionServiceAsyncStub"
    models: "ModelRouterServiceAsyncStub"
    attachments: "AttachmentBlobServiceAsyncStub"
    hooks: "HookServiceAsyncStub"
    run_hooks: "RunHookServiceAsyncStub"


@asynccontextmanager
async def open_peers(process: Process, settings: RunnerSettings) -> AsyncIterator[Peers]:
    """Open channels to the five services that a runner calls. They connect when first used."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_peer(process, "session", settings.session_target))
        transcript = await stack.enter_async_context(
            open_peer(process, "transcript", settings.transcript_target)
        )
        model_router = await stack.enter_async_context(
            open_peer(process, "model-router", settings.model_router_target)
        )
        attachment_blob = await stack.enter_async_context(
            open_peer(process, "attachment-blob", settings.attachment_blob_target)
        )
        hook = await stack.enter_async_context(open_peer(process, "hook", settings.hook_target))
        yield Peers(
            session=session,
            transcript=transcript,
            model_router=model_router,
            attachment_blob=attachment_blob,
            hook=hook,
            runs=RunServiceStub(session.channel),
            budgets=BudgetServiceStub(session.channel),
            sessions=SessionServiceStub(session.channel),
            transcripts=TranscriptServiceStub(transcript.channel),
            live=LiveServiceStub(transcript.channel),
            files=FileServiceStub(transcript.channel),
            searches=SearchServiceStub(transcript.channel),
            compactions=CompactionServiceStub(transcript.channel),
            models=ModelRouterServiceStub(model_router.channel),
            attachments=AttachmentBlobServiceStub(attachment_blob.channel),
            hooks=HookServiceStub(hook.channel),
            run_hooks=RunHookServiceStub(hook.channel),
        )
