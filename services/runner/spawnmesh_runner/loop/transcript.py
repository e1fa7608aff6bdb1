"""Reads and writes of the run's transcript."""

from collections.abc import Sequence
from contextlib import suppress

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.idempotency_keys import answer_key
from spawnmesh_runner.loop.answer_limits import fit_answer, variants_with_fewer_arguments
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachment_redaction import variants_without_markers
from spawnmesh_runner.loop.messages import calls_of, text_of
from spawnmesh_runner.tools.call import BLOCKED
from spawnmesh_runner.tools.registry import declaration
from spawnmesh_runner.tools.transcript_describe import TRANSCRIPT_DESCRIBE

log = structlog.get_logger()

_RELEASE_SECONDS = 3.0
_TURNS = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_MESSAGE, entry_pb2.ENTRY_KIND_COMPACTION])


async def acquire_writer(assignment: Assignment) -> None:
    """Make this run, at this epoch, the only writer.

    Raises MeshError WRITER_CLAIM_LOST if a later epoch is.
    """
    peers = assignment.peers
    request = pb.AcquireWriterRequest(session_id=assignment.session_id, claim=assignment.writer)
    await call_with_retry(peers.transcript, peers.transcripts.AcquireWriter, request)


async def release_writer(peers: Peers, session_id: str, claim: pb.WriterClaim) -> None:
    """Release the claim of a run that has ended, so that clients may compact the transcript.

    If the release fails, the next claim takes over.
    """
    request = pb.ReleaseWriterRequest(session_id=session_id, claim=claim)
    with suppress(MeshError):
        await peers.transcript.unary(
            peers.transcripts.ReleaseWriter, request, timeout_seconds=_RELEASE_SECONDS
        )


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
        log.warning("answer discarded", cause=error.facts.get("cause"), seq=error.facts.get("offending_seq"))
        # Claim again: this is refused if another writer took over.
        await acquire_writer(assignment)
        return False
    return True


async def append_message(assignment: Assignment, key: str, message: message_pb2.Message) -> str:
    """Append a message once for its key and return its entry's id.

    Raises MeshError WRITER_CLAIM_LOST.
    """
    return await _append(assignment, key, [entry_pb2.EntryBody(message=message)])


async def _append(assignment: Assignment, key: str, entries: Sequence[entry_pb2.EntryBody]) -> str:
    peers = assignment.peers
    request = pb.AppendEntriesRequest(
        session_id=assignment.session_id, claim=assignment.writer, idempotency_key=key, entries=entries
    )
    appended = await call_with_retry(peers.transcript, peers.transcripts.AppendEntries, request)
    return appended.entries[0].entry_id


async def append_answer(
    assignment: Assignment, turn: int, answer: message_pb2.Message, *notes: entry_pb2.SystemNote
) -> tuple[str, message_pb2.Message]:
    """Append a model's answer and the notes behind it, all or none.

    Return the entry's id and the stored answer.

    The stored answer is within the transcript's limits. It holds no redaction marker in place of a
    file's content: models copy the markers that they see in earlier calls.
    """
    key = answer_key(assignment.run_id, assignment.epoch, turn)
    kept = fit_answer(answer)
    note_bodies = [entry_pb2.EntryBody(system_note=note) for note in notes]
    smaller = {
        Reason.ATTACHMENT_CONTENT_IS_MARKER: variants_without_markers(kept),
        Reason.INVALID_REQUEST: variants_with_fewer_arguments(kept),
    }
    while True:
        try:
            return await _append(assignment, key, [entry_pb2.EntryBody(message=kept), *note_bodies]), kept
        except MeshError as error:
            if error.reason not in smaller or (variant := next(smaller[error.reason], None)) is None:
                raise
            kept = variant


async def assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    """Assemble what the model reads now, within the agent's token budget.

    System prompt and tools use a part of it.

    If the context has references to long outputs, the agent gets the tool that reads them.
    """
    assembled = await _assemble(assignment)
    if TRANSCRIPT_DESCRIBE.name not in assignment.tools and _has_references(assembled):
        assignment.tools[TRANSCRIPT_DESCRIBE.name] = TRANSCRIPT_DESCRIBE
        assembled = await _assemble(assignment)
    return assembled


def _has_references(assembled: pb.AssembleContextResponse) -> bool:
    return bool(assembled.stubbed or any(cut.file_ids for cut in assembled.cut)) or any(
        "file_" in entry.body.compaction.summary for entry in assembled.entries
    )


async def _assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    peers = assignment.peers
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
    return await call_with_retry(peers.transcript, peers.transcripts.AssembleContext, request)


async def replay_earlier_turns(assignment: Assignment) -> int:
    """Count the turns that this run took on earlier runners.

    Add their tokens to the usage, their calls (unless plugins blocked them) to the called tools,
    and the files that they wrote to the lost files. Reads backwards in pages, up to the entries of
    an earlier run of the session. Entries of other writers in between are skipped.
    """
    peers = assignment.peers
    turn_count = 0
    kept_back: set[str] = set()
    request = pb.ListEntriesRequest(session_id=assignment.session_id, before_seq=0, filter=_TURNS)
    while True:
        page = await call_with_retry(peers.transcript, peers.transcripts.ListEntries, request)
        for entry in reversed(page.entries):
            if 0 < entry.writer.epoch < assignment.first_epoch:
                return turn_count
            if entry.writer.run_id != assignment.run_id:
                continue
            message = entry.body.message
            assignment.lost_files.add_message(message)
            assignment.add_usage(entry.body.compaction.sources.usage)
            if message.role == message_pb2.ROLE_ASSISTANT:
                turn_count += 1
                assignment.add_usage(message.usage)
                made = (call for call in calls_of(message) if call.tool_call_id not in kept_back)
                assignment.called_tools.update(call.name for call in made)
                kept_back.clear()
            elif _was_blocked(message):
                kept_back.add(message.tool_call_id)
        if not page.entries or not page.has_more:
            return turn_count
        request.before_seq = page.entries[0].seq


_KEPT_BACK = (f"{BLOCKED}: ", f"{Reason.PLUGIN_FAILED.value}: ")


def _was_blocked(result: message_pb2.Message) -> bool:
    """Return True for the result of a call that a plugin blocked.

    A tool's own error has another reason in front.
    """
    return result.is_error and text_of(result).startswith(_KEPT_BACK)
