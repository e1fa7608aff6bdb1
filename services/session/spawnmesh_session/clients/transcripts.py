"""Calls of the transcript service."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_SUPERSEDED, EntryBody, Label
from spawnmesh.transcript.v1.fork_pb2 import Fork
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_runtime.peers import Peer

if TYPE_CHECKING:  # The types of asyncio stubs exist only for type checkers.
    from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceAsyncStub


def superseding_label(entry_id: str) -> tuple[str, list[EntryBody]]:
    """Return the request_id and the entries that mark a withdrawn draft as superseded."""
    return f"withdraw:v1:{entry_id}", [EntryBody(label=Label(entry_id=entry_id, kind=LABEL_KIND_SUPERSEDED))]


@dataclass(frozen=True, slots=True)
class Transcripts:
    """The transcripts of sessions."""

    peer: Peer
    timeout_seconds: float

    @property
    def _stub(self) -> "TranscriptServiceAsyncStub":
        return TranscriptServiceStub(self.peer.channel)

    async def create(
        self, session_id: str, parent_session_id: str, fork: Fork | None, key: str, entries: list[EntryBody]
    ) -> None:
        """Create the session's transcript unless it exists; append the entries once for the key."""
        request = pb.CreateTranscriptRequest(
            session_id=session_id,
            parent_session_id=parent_session_id,
            fork=fork,
            request_id=key,
            entries=entries,
        )
        await self.peer.unary(self._stub.CreateTranscript, request, timeout_seconds=self.timeout_seconds)

    async def delete(self, session_id: str) -> None:
        """Delete the session's transcript if it exists."""
        request = pb.DeleteTranscriptRequest(session_id=session_id)
        await self.peer.unary(self._stub.DeleteTranscript, request, timeout_seconds=self.timeout_seconds)

    async def acquire(self, session_id: str, claim: pb.WriterClaim) -> None:
        """Make the claim that of the one writer. Raise WRITER_CLAIM_LOST if a higher one is."""
        request = pb.AcquireWriterRequest(session_id=session_id, claim=claim)
        await self.peer.unary(self._stub.AcquireWriter, request, timeout_seconds=self.timeout_seconds)

    async def release(self, session_id: str, claim: pb.WriterClaim) -> None:
        """Refuse later writes under the claim or a lower one, acquired or not.

        A higher one stays.
        """
        request = pb.ReleaseWriterRequest(session_id=session_id, claim=claim)
        await self.peer.unary(self._stub.ReleaseWriter, request, timeout_seconds=self.timeout_seconds)

    async def append(
        self,
        session_id: str,
        key: str,
        entries: list[EntryBody],
        claim: pb.WriterClaim | None = None,
        *,
        releases_writer: bool = False,
    ) -> bool:
        """Append the entries once for each key; in a run's name if there is a claim, and as its
        last entries if the append `releases_writer`.

        Return False if the key was used before: then nothing was released.
        """
        request = pb.AppendEntriesRequest(
            session_id=session_id,
            claim=claim,
            request_id=key,
            entries=entries,
            release_writer=releases_writer,
        )
        appended = await self.peer.unary(
            self._stub.AppendEntries, request, timeout_seconds=self.timeout_seconds
        )
        return not appended.replayed
