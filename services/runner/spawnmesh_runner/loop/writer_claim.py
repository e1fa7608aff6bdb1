"""The claim that makes the run the only writer of its transcript."""

from contextlib import suppress

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment

_RELEASE_SECONDS = 3.0


async def acquire_writer(assignment: Assignment) -> None:
    """Make this run, at this epoch, the only writer.

    Raises MeshError WRITER_CLAIM_LOST if a later epoch is.
    """
    peers = assignment.peers
    request = pb.AcquireWriterRequest(session_id=assignment.session_id, claim=assignment.writer)
    await call_with_retry(peers.transcript, peers.transcripts.AcquireWriter, request)


async def release_writer(peers: Peers, session_id: str, claim: pb.WriterClaim) -> None:
    """Release the claim of a run that stops here, so that clients may compact the transcript.

    If the release fails, the next claim takes over.
    """
    request = pb.ReleaseWriterRequest(session_id=session_id, claim=claim)
    with suppress(MeshError):
        await peers.transcript.unary(
            peers.transcripts.ReleaseWriter, request, timeout_seconds=_RELEASE_SECONDS
        )
