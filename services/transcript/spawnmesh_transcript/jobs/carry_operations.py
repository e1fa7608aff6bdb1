"""The steps of the operations of this service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.long_running.operation import OperationType, Progress, Step, Work
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.operation_types import RECOUNT, TIER
from spawnmesh_transcript.operations.recounting import recount
from spawnmesh_transcript.operations.tier_report import ACTIONS
from spawnmesh_transcript.operations.tiering import PayloadTiering

_STEP_ENTRIES = 1_000
_SUMMED = (
    "examined_entry_count",
    "externalized_entry_count",
    "cooled_entry_count",
    "cooled_bytes",
    "reverted_entry_count",
    "reverted_bytes",
    "failed_entry_count",
    "condensed_entry_count",
)


@dataclass(frozen=True, slots=True)
class TranscriptSteps:
    """Steps that look at up to 1,000 entries each, for some seconds. `position` is a seq."""

    database: Database
    blobs: BlobStore
    workers: CpuWorkers
    tiering: PayloadTiering

    def by_method(self) -> Mapping[str, tuple[OperationType, Step]]:
        """Return the steps by the RPC that starts the operation."""
        return {TIER.method: (TIER, self.tier), RECOUNT.method: (RECOUNT, self.recount)}

    async def tier(self, work: Work) -> Progress:
        """Move payloads of some entries. Raises NOT_FOUND and TIER_DISABLED."""
        request = cast(pb.TierTranscriptRequest, work.request)
        report = await self.tiering.tier(
            Key(work.tenant_id, request.session_id),
            ACTIONS[request.action],
            after_seq=int(work.position or 0),
            max_entry_count=_STEP_ENTRIES,
        )
        total = cast(pb.TierTranscriptResponse, work.response)
        for name in _SUMMED:
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.failure_reason = report.failure_reason or total.failure_reason
        return Progress(
            total, str(report.next_after_seq), total.examined_entry_count, report.last_seq, report.done
        )

    async def recount(self, work: Work) -> Progress:
        """Count some entries again. Raises NOT_FOUND."""
        request = cast(pb.RecountTranscriptRequest, work.request)
        report = await recount(
            self.database,
            self.blobs,
            self.workers,
            Key(work.tenant_id, request.session_id),
            after_seq=int(work.position or 0),
            max_entry_count=_STEP_ENTRIES,
            is_dry_run=request.dry_run,
        )
        total = cast(pb.RecountTranscriptResponse, work.response)
        total.token_vocabulary = report.token_vocabulary
        total.examined_entry_count += report.examined_entry_count
        total.recounted_entry_count += report.recounted_entry_count
        total.token_count_before += report.token_count_before
        total.token_count_after += report.token_count_after
        return Progress(
            total, str(report.next_after_seq), total.examined_entry_count, report.last_seq, report.done
        )
