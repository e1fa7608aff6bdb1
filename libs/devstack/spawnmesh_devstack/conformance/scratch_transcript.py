"""A transcript for one case, written and read as a run does, and deleted at the end."""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.peers import Peer

from spawnmesh_devstack.conformance.mesh import MeshAccess, RunOfReplay, new_run

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub

_TENANT = "conformance"
_ENTRIES_PER_APPEND = 100
_ENTRIES_PER_PAGE = 1000
_CALL_SECONDS = 30.0
_TOKEN_BUDGET = 1_000_000_000  # More than any case needs.


@dataclass(frozen=True, slots=True)
class ScratchTranscript:
    """A transcript whose writer is `run`."""

    mesh: MeshAccess
    run: RunOfReplay

    async def append(self, messages: Sequence[Message]) -> list[int]:
        """Append in calls of at most a hundred entries and return the seq of each message. Raises
        MeshError for a refusal.
        """
        seqs: list[int] = []
        for start in range(0, len(messages), _ENTRIES_PER_APPEND):
            request = pb.AppendEntriesRequest(
                session_id=self.run.session_id,
                claim=_claim(self.run),
                request_id=uuid.uuid4().hex,
                entries=[
                    EntryBody(message=message) for message in messages[start : start + _ENTRIES_PER_APPEND]
                ],
            )
            with self.mesh.as_run(self.run):
                answer = await self._peer.unary(
                    self._stub.AppendEntries, request, timeout_seconds=_CALL_SECONDS
                )
            seqs += [entry.seq for entry in answer.entries]
        return seqs

    async def entries(self) -> list[Entry]:
        """Return all stored entries."""
        listed: list[Entry] = []
        request = pb.ListEntriesRequest(session_id=self.run.session_id, page_size=_ENTRIES_PER_PAGE)
        while True:
            with self.mesh.as_run(self.run):
                page = await self._peer.unary(self._stub.ListEntries, request, timeout_seconds=_CALL_SECONDS)
            listed += page.entries
            if not page.next_page_token:
                return listed
            request.page_token = page.next_page_token

    async def context(self, tail: FreshTail | None = None) -> pb.AssembleContextResponse:
        """Return the context that a model would read."""
        request = pb.AssembleContextRequest(
            session_id=self.run.session_id, token_budget=_TOKEN_BUDGET, fresh_tail=tail
        )
        with self.mesh.as_run(self.run):
            return await self._peer.unary(self._stub.AssembleContext, request, timeout_seconds=_CALL_SECONDS)

    @property
    def _peer(self) -> Peer:
        return self.mesh.peers["transcript"]

    @property
    def _stub(self) -> "TranscriptServiceAsyncStub":
        return TranscriptServiceStub(self._peer.channel)


@asynccontextmanager
async def open_scratch_transcript(
    mesh: MeshAccess, tenant_id: str = _TENANT
) -> AsyncIterator[ScratchTranscript]:
    """Create an empty transcript, and delete it at the end of the block."""
    run = new_run(tenant_id)
    peer = mesh.peers["transcript"]
    stub = TranscriptServiceStub(peer.channel)
    with mesh.as_session(tenant_id):
        await peer.unary(stub.CreateTranscript, pb.CreateTranscriptRequest(session_id=run.session_id))
    try:
        with mesh.as_run(run):
            acquire = pb.AcquireWriterRequest(session_id=run.session_id, claim=_claim(run))
            await peer.unary(stub.AcquireWriter, acquire)
        yield ScratchTranscript(mesh, run)
    finally:
        with mesh.as_session(tenant_id):
            await peer.unary(stub.DeleteTranscript, pb.DeleteTranscriptRequest(session_id=run.session_id))


def _claim(run: RunOfReplay) -> pb.WriterClaim:
    return pb.WriterClaim(run_id=run.run_id, epoch=run.epoch)
