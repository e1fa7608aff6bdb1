"""Compaction of a run's transcript, and the current turn where a summary replaced its beginning."""

from collections.abc import Sequence
from contextlib import aclosing

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_progress import TurnProgress, turn_progress
from spawnmesh_client.unfinished_turn import is_own
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.transcript_pages import entries_before

log = structlog.get_logger()

# Every speaker except tools: their results are large and do not say which tools ran.
_SPEAKERS = (
    message_pb2.ROLE_USER,
    message_pb2.ROLE_ASSISTANT,
    message_pb2.ROLE_BASH_EXECUTION,
    message_pb2.ROLE_CUSTOM,
)


async def compact_transcript(assignment: Assignment, *, timeout_seconds: float) -> bool:
    """Have the oldest part of the transcript summarized, outside of any prompt window.

    Return True if it was. A failure or a plugin's refusal does not fail the run. It is logged, and
    after a few failures the run stops trying. A budget that refuses it is no failure: raises
    MeshError SESSION_BUDGET_EXCEEDED, as the next answer would be refused too.
    """
    if not assignment.compactions.may_try:
        return False
    peers = assignment.peers
    request = pb.CompactAsWriterRequest(
        session_id=assignment.session_id,
        claim=assignment.writer,
        models=assignment.claimed.models,
        fresh_tail=assignment.fresh_tail,
    )
    try:
        done = await peers.transcript.unary(
            peers.compactions.CompactAsWriter, request, timeout_seconds=timeout_seconds
        )
    except MeshError as error:
        if error.reason is Reason.SESSION_BUDGET_EXCEEDED:
            raise
        assignment.compactions.failed_count += 1
        log.warning("compaction_failed", reason=error.reason.value)
        return False
    if done.refused_by:
        assignment.compactions.failed_count += 1
        log.info("compaction_refused", plugin=done.refused_by)
    assignment.add_usage(done.summary.body.compaction.sources.usage)
    return done.HasField("summary")


async def current_turn(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> TurnProgress:
    """Describe the run's current turn, also where a summary covers its beginning."""
    covered_seq = max((entry.body.compaction.sources.last_seq for entry in entries), default=0)
    behind = [
        entry
        for entry in entries
        if not entry.body.HasField("compaction") and not 0 < entry.seq <= covered_seq
    ]
    turn = turn_progress(behind, assignment.run_id, assignment.may_have_run)
    if turn.begin_seq or not covered_seq:
        return turn
    if covered_seq not in assignment.summarized_turns:
        assignment.summarized_turns[covered_seq] = await _covered_turn(assignment, covered_seq)
    return turn_progress(
        [*assignment.summarized_turns[covered_seq], *behind], assignment.run_id, assignment.may_have_run
    )


async def _covered_turn(assignment: Assignment, covered_seq: int) -> list[entry_pb2.Entry]:
    """Return the run's answers up to a seq and the other writer's message before them."""
    found: list[entry_pb2.Entry] = []
    notes = await _newest_note_of_others(assignment, covered_seq + 1)
    note_seq = notes[0].seq if notes else 0
    speakers = entry_pb2.EntryFilter(roles=_SPEAKERS)
    async with aclosing(entries_before(assignment, covered_seq + 1, speakers)) as entries:
        async for entry in entries:
            if entry.seq < note_seq:
                break
            found.append(entry)
            if (
                entry.body.message.role != message_pb2.ROLE_ASSISTANT
                or entry.writer.run_id != assignment.run_id
            ):
                return found[::-1]
    return [*notes, *reversed(found)]


async def _newest_note_of_others(assignment: Assignment, before_seq: int) -> list[entry_pb2.Entry]:
    """Return the newest note of another writer, or nothing.

    A note of the run itself does not end its turn.
    """
    notes = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_NOTE])
    async with aclosing(entries_before(assignment, before_seq, notes, page_size=1)) as entries:
        async for entry in entries:
            if not is_own(entry, assignment.run_id):
                return [entry]
    return []
