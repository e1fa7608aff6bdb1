"""Compaction of a run's transcript, and the current turn where a summary replaced its beginning."""

from collections.abc import AsyncGenerator, Sequence

from spawnmesh.transcript.v1 import compaction_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.turn_progress import TurnProgress

from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.transcript_pages import entries_before


async def compact_transcript(assignment: Assignment, *, timeout_seconds: float) -> bool:
    """Have the oldest part of the transcript summarized, outside of any prompt window.

    Return True if it was. Raises MeshError SESSION_BUDGET_EXCEEDED; another failure does not fail
    the run.
    """
    peers = assignment.peers
    request = pb.CompactAsWriterRequest(
        session_id=assignment.session_id,
        claim=assignment.writer,
        models=assignment.claimed.models,
        fresh_tail=assignment.fresh_tail,
    )

    async def call(asked: pb.CompactAsWriterRequest) -> pb.CompactAsWriterResponse:
        return await peers.transcript.unary(
            peers.compactions.CompactAsWriter, asked, timeout_seconds=timeout_seconds
        )

    return await assignment.compactions.compact(request, call, assignment.add_usage)


async def current_turn(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> TurnProgress:
    """Describe the run's current turn, also where a summary covers its beginning."""

    def before(
        seq: int, wanted: entry_pb2.EntryFilter, page_size: int
    ) -> AsyncGenerator[entry_pb2.Entry, None]:
        return entries_before(assignment, seq, wanted, page_size=page_size)

    return await assignment.compactions.current_turn(
        entries, assignment.run_id, assignment.may_have_run, before
    )
