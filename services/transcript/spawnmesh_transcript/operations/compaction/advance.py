"""A step of the compaction that a client started: one summary, and how far the whole is by then.

What was summarized is read from the transcript, and so it is right after a step whose process was
lost, and beside other compactions.
"""

from dataclasses import dataclass

from spawnmesh_core.errors import Conflict
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.compaction.compact import CompactionRefusal, CompactionRequest
from spawnmesh_transcript.operations.compaction.plan import CompactionCandidate, find_candidate
from spawnmesh_transcript.operations.compaction.recorded import RecordedCompactor
from spawnmesh_transcript.store.summaries import Summary


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """The newest summary, None if there is none, and the messages and notes that summaries cover
    and that are still to be summarized. `is_done` if no further summary can be made.
    """

    newest: Summary | None
    pending_count: int
    is_done: bool
    refusal: CompactionRefusal | None = None

    @property
    def covered_count(self) -> int:
        """The number of messages and notes in summaries."""
        return self.newest.covered_turn_count if self.newest else 0


async def measure(recorded: RecordedCompactor, key: Key, request: CompactionRequest) -> CompactionProgress:
    """Return how far the transcript is summarized.

    Raises NOT_FOUND, and CONFLICT while a run writes the transcript.
    """
    candidate = await find_candidate(recorded.compactor.database, key, request.fresh_tail)
    request.requester.require_writer(candidate.head)
    pending_count = _pending_count(candidate)
    return CompactionProgress(candidate.previous, pending_count, not pending_count)


async def advance(recorded: RecordedCompactor, key: Key, request: CompactionRequest) -> CompactionProgress:
    """Append one summary, unless another compaction was faster, and return how far the transcript
    is summarized.

    Raises NOT_FOUND, CONFLICT while a run writes the transcript, DEPENDENCY_UNAVAILABLE,
    PLUGIN_FAILED, and the router's MeshError.
    """
    refusal: CompactionRefusal | None = None
    try:
        refusal = (await recorded.compact(key, request)).refusal
    except Conflict as error:
        if error.reason is not Reason.CONFLICT:
            raise
    progress = await measure(recorded, key, request)
    if refusal is None:
        return progress
    return CompactionProgress(progress.newest, progress.pending_count, is_done=True, refusal=refusal)


def _pending_count(candidate: CompactionCandidate) -> int:
    return sum(one.turn.seq <= candidate.end_seq for one in candidate.scanned)
