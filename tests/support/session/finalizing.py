"""The finalize saga of another process, interrupted, and a plugin that records drafts."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.domain.drafts import Draft
from spawnmesh_session.operations.finalize_saga import FinalizeSaga

from tests.support.session.crashing import Crash
from tests.support.session.drafting import entries_of
from tests.support.session.harness import Mesh
from tests.support.session.plugins import Plugin
from tests.support.session.worker import components_of

Between = Callable[[], Awaitable[None]]


class Labelling:
    """The transcript client, with a callback after each append: the last step before the commit."""

    def __init__(self, transcripts: Any, after: Between) -> None:
        self.transcripts = transcripts
        self.after = after

    async def append(self, *arguments: Any, releases_writer: bool = False) -> bool:
        is_new: bool = await self.transcripts.append(*arguments, releases_writer=releases_writer)
        await self.after()
        return is_new


@asynccontextmanager
async def saga_with(mesh: Mesh, after: Between) -> AsyncIterator[FinalizeSaga]:
    """Another process's saga, and what happens in it between label and commit."""
    async with components_of(mesh.settings) as components:
        transcripts: Any = Labelling(components.transcripts, after)
        yield FinalizeSaga(
            components.database,
            transcripts,
            components.hooks,
            components.terminator,
            components.workers,
            components.metrics,
        )


async def finalize_beside(
    mesh: Mesh, held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest, after: Between
) -> Any:
    """Offers the draft there, in the run's name."""
    async with saga_with(mesh, after) as saga:
        with impersonate(mesh.tenant):
            return await saga.finalize(mesh.tenant, draft_of(held, offered))


def draft_of(held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest) -> Draft:
    return Draft(
        held.run.run_id,
        held.run.epoch,
        offered.draft_entry_id,
        offered.draft_text,
        {},
        is_last_turn=offered.is_last_turn,
    )


async def writer_of(transcript: Peer, held: run_pb.ClaimedRun) -> str:
    """Return the run that writes the transcript now; empty for none."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    request = transcript_pb.ListEntriesRequest(session_id=held.session.session_id, page_size=1)
    with use_token(held.run_token):
        page = await transcript.unary(stub.ListEntries, request, timeout_seconds=60)
    return str(page.head.writer_run_id)


async def labels_of(transcript: Peer, held: run_pb.ClaimedRun, entry_id: str) -> list[int]:
    bodies = [entry.body for entry in await entries_of(transcript, held) if entry.body.HasField("label")]
    return [body.label.kind for body in bodies if body.label.entry_id == entry_id]


async def die() -> None:
    raise Crash


class Reader(Plugin):
    """Remembers what it was asked about."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.read: list[str] = []

    async def HandleBeforeAgentFinalize(self, request: Any, context: Any) -> Any:
        self.read.append(request.event.draft_text)
        return await super().HandleBeforeAgentFinalize(request, context)
