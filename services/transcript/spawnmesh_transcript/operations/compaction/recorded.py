"""Compactions with their records: an activity, a metric, and a notification of readers."""

import asyncio
from dataclasses import dataclass

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.metrics import CompactionMetrics
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.change_notifier import ChangeNotifier
from spawnmesh_transcript.operations.compaction.compact import (
    CompactionOutcome,
    CompactionRequest,
    Compactor,
)

_UNRECORDED = (
    Reason.NOT_FOUND,
    Reason.WRITER_CLAIM_LOST,
    Reason.CONFLICT,
    Reason.SESSION_BUDGET_EXCEEDED,
)
"""Refusals: they are no failures of a compaction."""


@dataclass(frozen=True, slots=True)
class RecordedCompactor:
    """A compactor that records what it did or why it failed."""

    compactor: Compactor
    notifier: ChangeNotifier
    activities: ActivityRecorder
    metrics: CompactionMetrics

    async def compact(self, key: Key, request: CompactionRequest) -> CompactionOutcome:
        """Append a summary, and record it. Raises the errors of the compactor."""
        try:
            outcome = await self.compactor.compact(key, request)
        except (MeshError, asyncio.CancelledError) as error:
            self._record_failure(key, error.reason if isinstance(error, MeshError) else Reason.CANCELLED)
            raise
        self._record(key, outcome)
        return outcome

    def _record_failure(self, key: Key, reason: Reason) -> None:
        if reason not in _UNRECORDED:
            failed = pb.Failed(action=pb.FAILED_ACTION_COMPACT, reason=reason)
            self.activities.record_later(key, pb.Activity(failed=failed))
            self.metrics.compacted(outcome="failed")

    def _record(self, key: Key, outcome: CompactionOutcome) -> None:
        summary = outcome.summary
        if summary is None:
            self.metrics.compacted(outcome="refused" if outcome.refusal else "nothing")
            return
        self.notifier.transcript_changed(key)
        compacted = pb.Compacted(
            entry_id=summary.entry.entry_id, sources=summary.sources, token_count=summary.entry.token_count
        )
        self.activities.record_later(key, pb.Activity(compacted=compacted))
        self.metrics.compacted(outcome="compacted", method=summary.method.lower())
