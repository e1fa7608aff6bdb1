"""The prompt window: whether only this run wrote while the model read the transcript."""

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.context_assembly import context_for, context_request
from spawnmesh_runner.loop.transcript_appends import append_answer
from spawnmesh_runner.loop.writer_claim import acquire_writer

log = structlog.get_logger()

T = TypeVar("T")


async def open_window(assignment: Assignment) -> tuple[pb.Fence, pb.AssembleContextResponse]:
    """Make this run the writer of the transcript. Return its fence, and what the model reads now.

    Raises MeshError WRITER_CLAIM_LOST.
    """
    fence = pb.Fence()

    async def read() -> pb.AssembleContextResponse:
        peers = assignment.peers
        request = pb.OpenWindowRequest(
            session_id=assignment.session_id, claim=assignment.writer, context=context_request(assignment)
        )
        opened = await call_with_retry(peers.transcript, peers.transcripts.OpenWindow, request)
        fence.CopyFrom(opened.fence)
        return opened.context

    return fence, await context_for(assignment, read)


async def close_window(
    assignment: Assignment,
    fence: pb.Fence,
    turn: int,
    answer: message_pb2.Message,
    notes: Sequence[entry_pb2.SystemNote] = (),
) -> tuple[str, message_pb2.Message] | None:
    """Append the answer of the turn as `append_answer` does, if only this run wrote to the
    transcript since the fence. Otherwise return None: the answer replies to a transcript that no
    longer exists.

    Then the run still holds the transcript. Raises MeshError WRITER_CLAIM_LOST.
    """
    return await _unless_taken_over(assignment, append_answer(assignment, turn, answer, notes, fence))


async def holds_window(assignment: Assignment, fence: pb.Fence) -> bool:
    """Return whether only this run wrote to the transcript since the fence.

    If not, the run still holds the transcript. Raises MeshError WRITER_CLAIM_LOST.
    """
    peers = assignment.peers
    request = pb.CloseWindowRequest(session_id=assignment.session_id, claim=assignment.writer, fence=fence)
    closing = call_with_retry(peers.transcript, peers.transcripts.CloseWindow, request)
    return await _unless_taken_over(assignment, closing) is not None


async def _unless_taken_over(assignment: Assignment, closing: Awaitable[T]) -> T | None:
    try:
        return await closing
    except MeshError as error:
        if error.reason is not Reason.SESSION_TAKEOVER:
            raise
        log.warning("answer_discarded", cause=error.facts.get("cause"), seq=error.facts.get("offending_seq"))
        # Claim again: this is refused if another writer took over.
        await acquire_writer(assignment)
        return None
