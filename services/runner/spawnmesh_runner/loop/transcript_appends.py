"""Appends to the run's transcript, each once for its key."""

from collections.abc import Sequence

from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_client.answer_limits import fit_answer, variants_with_fewer_arguments
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.request_ids import answer_request_id
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachment_redaction import variants_without_markers


async def append_message(assignment: Assignment, key: str, message: message_pb2.Message) -> str:
    """Append a message once for its key and return its entry's id.

    Raises MeshError WRITER_CLAIM_LOST.
    """
    return await _append(assignment, key, [entry_pb2.EntryBody(message=message)])


async def _append(
    assignment: Assignment, key: str, entries: Sequence[entry_pb2.EntryBody], fence: pb.Fence | None = None
) -> str:
    peers = assignment.peers
    request = pb.AppendEntriesRequest(
        session_id=assignment.session_id,
        claim=assignment.writer,
        request_id=key,
        entries=entries,
        fence=fence,
    )
    appended = await call_with_retry(peers.transcript, peers.transcripts.AppendEntries, request)
    return appended.entries[0].entry_id


async def append_answer(
    assignment: Assignment,
    turn: int,
    answer: message_pb2.Message,
    notes: Sequence[entry_pb2.SystemNote],
    fence: pb.Fence,
) -> tuple[str, message_pb2.Message]:
    """Append a model's answer and the notes behind it, all or none, and close the window.

    Return the entry's id and the stored answer.

    The stored answer is within the transcript's limits. It holds no redaction marker in place of a
    file's content: models copy the markers that they see in earlier calls. Raises MeshError
    SESSION_TAKEOVER and WRITER_CLAIM_LOST.
    """
    key = answer_request_id(assignment.run_id, assignment.epoch, turn)
    kept = fit_answer(answer)
    note_bodies = [entry_pb2.EntryBody(system_note=note) for note in notes]
    smaller = {
        Reason.ATTACHMENT_CONTENT_IS_MARKER: variants_without_markers(kept),
        Reason.INVALID_REQUEST: variants_with_fewer_arguments(kept),
    }
    while True:
        entries = [entry_pb2.EntryBody(message=kept), *note_bodies]
        try:
            return await _append(assignment, key, entries, fence), kept
        except MeshError as error:
            if error.reason not in smaller or (variant := next(smaller[error.reason], None)) is None:
                raise
            kept = variant
