"""The prompt window: whether only this run wrote while the model read the transcript."""

import structlog
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.writer_claim import acquire_writer

log = structlog.get_logger()


async def open_window(assignment: Assignment) -> pb.Fence:
    """Return the transcript's fence before it is read for a prompt.

    Raises MeshError WRITER_CLAIM_LOST.
    """
    peers = assignment.peers
    request = pb.OpenWindowRequest(session_id=assignment.session_id, claim=assignment.writer)
    return (await call_with_retry(peers.transcript, peers.transcripts.OpenWindow, request)).fence


async def close_window(assignment: Assignment, fence: pb.Fence) -> bool:
    """Return True if only this run wrote to the transcript since the fence.

    If it returns False, the run still holds the transcript. Raises MeshError WRITER_CLAIM_LOST.
    """
    peers = assignment.peers
    request = pb.CloseWindowRequest(session_id=assignment.session_id, claim=assignment.writer, fence=fence)
    try:
        await call_with_retry(peers.transcript, peers.transcripts.CloseWindow, request)
    except MeshError as error:
        if error.reason is not Reason.SESSION_TAKEOVER:
            raise
        log.warning("answer_discarded", cause=error.facts.get("cause"), seq=error.facts.get("offending_seq"))
        # Claim again: this is refused if another writer took over.
        await acquire_writer(assignment)
        return False
    return True
