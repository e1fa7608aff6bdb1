"""The run's reads and writes of its transcript."""

from collections.abc import Sequence
from contextlib import suppress

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import calls_of
from spawnmesh_runner.domain import answer_key
from spawnmesh_runner.handed_over import without_markers
from spawnmesh_runner.mesh import Mesh
from spawnmesh_runner.retry import persistently
from spawnmesh_runner.storable import storable, with_fewer_arguments
from spawnmesh_runner.tools.call import was_kept_back
from spawnmesh_runner.tools.registry import declaration
from spawnmesh_runner.tools.transcript_describe import TRANSCRIPT_DESCRIBE

log = structlog.get_logger()

_RELEASE_SECONDS = 3.0
_TURNS = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MESSAGE, entry_pb2.ENTRY_KIND_COMPACTION])


async def acquire_writer(assignment: Assignment) -> None:
    """Makes this run, at this epoch, the one writer. Raises MeshError WRITER_CLAIM_LOST when a later one is."""
    mesh = assignment.mesh
    request = pb.AcquireWriterRequest(session_id=assignment.session_id, claim=assignment.writer)
    await persistently(mesh.transcript, mesh.transcripts.AcquireWriter, request)


async def release_writer(mesh: Mesh, session_id: str, claim: pb.WriterClaim) -> None:
    """Gives up the claim of a run that has ended, so that clients may have it summarized. Where that fails, the next claim takes over."""
    request = pb.ReleaseWriterRequest(session_id=session_id, claim=claim)
    with suppress(MeshError):
        await mesh.transcript.unary(mesh.transcripts.ReleaseWriter, request, timeout_seconds=_RELEASE_SECONDS)


async def open_window(assignment: Assignment) -> pb.Fence:
    """Where the transcript stands before it is read for a prompt. Raises MeshError WRITER_CLAIM_LOST."""
    mesh = assignment.mesh
    request = pb.OpenWindowRequest(session_id=assignment.session_id, claim=assignment.writer)
    return (await persistently(mesh.transcript, mesh.transcripts.OpenWindow, request)).fence


async def window_held(assignment: Assignment, fence: pb.Fence) -> bool:
    """Whether all that the transcript got since is this run's own, so that an answer to what was read is one to what there is.

    Where it is not, the run still holds the transcript when this answers. Raises MeshError WRITER_CLAIM_LOST.
    """
    mesh = assignment.mesh
    request = pb.CloseWindowRequest(session_id=assignment.session_id, claim=assignment.writer, fence=fence)
    try:
        await persistently(mesh.transcript, mesh.transcripts.CloseWindow, request)
    except MeshError as error:
        if error.reason is not Reason.SESSION_TAKEOVER:
            raise
        log.warning("answer discarded", cause=error.facts.get("cause"), seq=error.facts.get("offending_seq"))
        await acquire_writer(assignment)  # The same claim again: it is refused if the takeover was another writer's.
        return False
    return True


async def append_message(assignment: Assignment, key: str, message: message_pb2.Message) -> str:
    """Appends a message, once for its key, and gives its entry's id. Raises MeshError WRITER_CLAIM_LOST."""
    return await _append(assignment, key, [entry_pb2.EntryBody(message=message)])


async def _append(assignment: Assignment, key: str, entries: Sequence[entry_pb2.EntryBody]) -> str:
    mesh = assignment.mesh
    request = pb.AppendEntriesRequest(
        session_id=assignment.session_id, claim=assignment.writer, idempotency_key=key, entries=entries
    )
    appended = await persistently(mesh.transcript, mesh.transcripts.AppendEntries, request)
    return appended.entries[0].entry_id


async def append_answer(
    assignment: Assignment, turn: int, answer: message_pb2.Message, *notes: entry_pb2.SystemNote
) -> tuple[str, message_pb2.Message]:
    """Appends what the model said in a turn, and gives its entry's id and it as it is kept. The notes come behind it, all at once.

    Which is without what is no content of a file, since a model copies the markers that it is shown in earlier calls, and within bounds.
    """
    key = answer_key(assignment.run_id, assignment.epoch, turn)
    kept = storable(answer)
    noted = [entry_pb2.EntryBody(system_note=note) for note in notes]
    lesser = {
        Reason.ATTACHMENT_CONTENT_IS_MARKER: without_markers(kept),
        Reason.INVALID_REQUEST: with_fewer_arguments(kept),
    }
    while True:
        try:
            return await _append(assignment, key, [entry_pb2.EntryBody(message=kept), *noted]), kept
        except MeshError as error:
            if error.reason not in lesser or (less := next(lesser[error.reason], None)) is None:
                raise
            kept = less


async def assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    """What the model should read now, within the agent's budget, of which the system prompt and the tools take their share.

    Where it has references, the agent may follow them from now on, by a tool that takes its share, too.
    """
    assembled = await _assemble(assignment)
    if TRANSCRIPT_DESCRIBE.name not in assignment.tools and _has_references(assembled):
        assignment.tools[TRANSCRIPT_DESCRIBE.name] = TRANSCRIPT_DESCRIBE
        assembled = await _assemble(assignment)
    return assembled


def _has_references(assembled: pb.AssembleContextResponse) -> bool:
    return bool(assembled.stubbed) or any("file_" in entry.body.compaction.summary for entry in assembled.entries)


async def _assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    mesh = assignment.mesh
    declared = map(declaration, assignment.tools.values())
    request = pb.AssembleContextRequest(
        session_id=assignment.session_id,
        token_budget=assignment.context_token_budget,
        fresh_tail=assignment.fresh_tail,
        model=next(iter(assignment.claimed.models), ""),
        accompanying_texts=[
            assignment.system_prompt,
            *(f"{tool.name} {tool.description} {tool.parameters_json}" for tool in declared),
        ],
    )
    return await persistently(mesh.transcript, mesh.transcripts.AssembleContext, request)


async def count_earlier_turns(assignment: Assignment) -> int:
    """Turns this run took in the hands of others; their tokens are added to its spending, their calls to the ones it made, unless plugins kept
    them back, and the files that they wrote to those that are lost.

    Reads backwards, in pages, up to what an earlier run of the session wrote. Others' notes and messages in between are passed over.
    """
    mesh = assignment.mesh
    turn_count = 0
    kept_back: set[str] = set()
    request = pb.ListEntriesRequest(session_id=assignment.session_id, before_seq=0, filter=_TURNS)
    while True:
        page = await persistently(mesh.transcript, mesh.transcripts.ListEntries, request)
        for entry in reversed(page.entries):
            if 0 < entry.writer.epoch < assignment.first_epoch:
                return turn_count
            if entry.writer.run_id != assignment.run_id:
                continue
            message = entry.body.message
            assignment.lost.read(message)
            assignment.spend(entry.body.compaction.sources.usage)
            if message.role == message_pb2.ROLE_ASSISTANT:
                turn_count += 1
                assignment.spend(message.usage)
                made = (call for call in calls_of(message) if call.tool_call_id not in kept_back)
                assignment.called.update(call.name for call in made)
                kept_back.clear()
            elif was_kept_back(message):
                kept_back.add(message.tool_call_id)
        if not page.entries or not page.has_more:
            return turn_count
        request.before_seq = page.entries[0].seq
