"""Report results of verifications."""

import structlog
from spawnmesh.transcript.v1 import activity_service_pb2 as activity_pb
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.verification import Mismatch
from spawnmesh_transcript.metrics import VerificationMetrics
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.verification.verify import Verified

log = structlog.get_logger()


class VerificationReporter:
    """Count verified transcripts, and log and record those that are not intact."""

    def __init__(self, metrics: VerificationMetrics, activities: ActivityRecorder) -> None:
        self._metrics = metrics
        self._activities = activities

    def report(self, key: Key, result: Verified | Mismatch) -> None:
        """Report the last result of a transcript; what is verified so far is not reported."""
        if isinstance(result, Verified):
            if result.is_complete:
                self._metrics.verified(is_intact=True)
            return
        self._metrics.verified(is_intact=False)
        log.error(
            "transcript_not_intact",
            tenant=key.tenant_id,
            session=key.session_id,
            seq=result.seq,
            entry=result.entry_id,
            cause=result.cause,
        )
        failed = activity_pb.Failed(
            action=activity_pb.FAILED_ACTION_VERIFY, reason=Reason.STORED_HASH_DIFFERS, seq=result.seq
        )
        self._activities.record_later(key, activity_pb.Activity(failed=failed))
