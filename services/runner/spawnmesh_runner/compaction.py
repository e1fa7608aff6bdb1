"""A run whose context is to be compacted, and what a run did of which its context has only a summary."""

from collections.abc import Sequence

import structlog
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_core.errors import MeshError

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import is_own
from spawnmesh_runner.executed import TurnSoFar, turn_so_far
from spawnmesh_runner.retry import persistently

log = structlog.get_logger()

# Whoever stands between two results; those are large, and say nothing of what ran.
_SPEAKERS = (
    message_pb2.ROLE_USER,
    message_pb2.ROLE_ASSISTANT,
    message_pb2.ROLE_BASH_EXECUTION,
    message_pb2.ROLE_CUSTOM,
)


async def compact(assignment: Assignment, *, timeout_seconds: float) -> bool:
    """Has the oldest part of the transcript summarized, outside of any prompt window; whether it was.

    A failure or a plugin's refusal is no reason for the run to fail: it is logged, and after a few nobody is asked any more.
    """
    if not assignment.compacting.is_worth_asking:
        return False
    mesh = assignment.mesh
    request = pb.CompactTranscriptRequest(
        session_id=assignment.session_id,
        claim=assignment.writer,
        models=assignment.claimed.models,
        fresh_tail=assignment.fresh_tail,
    )
    try:
        done = await mesh.transcript.unary(mesh.compactions.CompactTranscript, request, timeout_seconds=timeout_seconds)
    except MeshError as error:
        assignment.compacting.failed_count += 1
        log.warning("not compacted", reason=error.reason.value)
        return False
    if done.refused_by:
        assignment.compacting.failed_count += 1
        log.info("compaction refused", plugin=done.refused_by)
    assignment.spend(done.summary.body.compaction.sources.usage)
    return done.HasField("summary")


async def whole_turn(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> TurnSoFar:
    """What the run did since somebody else last spoke, also where a summary covers the beginning of that."""
    covered_seq = max((entry.body.compaction.sources.last_seq for entry in entries), default=0)
    behind = [entry for entry in entries if not entry.body.HasField("compaction") and not 0 < entry.seq <= covered_seq]
    turn = turn_so_far(behind, assignment.run_id, assignment.may_have_run)
    if turn.begin_seq or not covered_seq:
        return turn
    if covered_seq not in assignment.covered:
        assignment.covered[covered_seq] = await _covered_turn(assignment, covered_seq)
    return turn_so_far([*assignment.covered[covered_seq], *behind], assignment.run_id, assignment.may_have_run)


async def _covered_turn(assignment: Assignment, covered_seq: int) -> list[entry_pb2.Entry]:
    """The run's answers up to a seq, and before them whoever spoke last; oldest first."""
    found: list[entry_pb2.Entry] = []
    notes = await _newest_note_of_others(assignment, covered_seq + 1)
    note_seq = notes[0].seq if notes else 0
    before_seq = covered_seq + 1
    while True:
        page = await _page(assignment, before_seq, entry_pb2.EntryFilter(roles=_SPEAKERS), 0)
        for entry in reversed(page.entries):
            if entry.seq < note_seq:
                return [*notes, *reversed(found)]
            found.append(entry)
            if entry.body.message.role != message_pb2.ROLE_ASSISTANT or entry.writer.run_id != assignment.run_id:
                return found[::-1]
        if not page.has_more or not page.entries:
            return [*notes, *reversed(found)]
        before_seq = page.entries[0].seq


async def _newest_note_of_others(assignment: Assignment, before_seq: int) -> list[entry_pb2.Entry]:
    """It, or nothing where there is none: with a note of the run itself its turn goes on."""
    notes = entry_pb2.EntryFilter(kinds=[entry_pb2.ENTRY_KIND_NOTE])
    while True:
        page = await _page(assignment, before_seq, notes, 1)
        if not page.entries or not is_own(page.entries[0], assignment.run_id):
            return list(page.entries)
        before_seq = page.entries[0].seq


async def _page(
    assignment: Assignment, before_seq: int, choice: entry_pb2.EntryFilter, page_size: int
) -> transcript_pb.ListEntriesResponse:
    mesh = assignment.mesh
    request = transcript_pb.ListEntriesRequest(
        session_id=assignment.session_id, before_seq=before_seq, filter=choice, page_size=page_size
    )
    return await persistently(mesh.transcript, mesh.transcripts.ListEntries, request)
