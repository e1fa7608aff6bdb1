"""The steps of this service's operations: a job takes them one by one until the work is done."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from spawnmesh.transcript.v1 import compaction_service_pb2 as compaction_pb
from spawnmesh.transcript.v1 import storage_service_pb2 as pb
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.long_running.operation import OperationType, Progress, Step, Work
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.stale_results import tail_limits
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.compaction.advance import advance, measure
from spawnmesh_transcript.operations.compaction.compact import CompactionRequest
from spawnmesh_transcript.operations.compaction.recorded import RecordedCompactor
from spawnmesh_transcript.operations.compaction.summary_append import CompactionRequester
from spawnmesh_transcript.operations.operation_types import COMPACT, RECOUNT, TIER
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
    """Steps of tiering and of a recount look at up to 1,000 entries each, for some seconds; their
    `position` is a seq. A step of a compaction appends one summary, which may take minutes.
    """

    database: Database
    blobs: BlobStore
    workers: CpuWorkers
    tiering: PayloadTiering
    compactor: RecordedCompactor

    def by_method(self) -> Mapping[str, tuple[OperationType, Step]]:
        """Return the steps by the RPC that starts the operation."""
        return {
            TIER.method: (TIER, self.tier),
            RECOUNT.method: (RECOUNT, self.recount),
            COMPACT.method: (COMPACT, self.compact),
        }

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

    async def compact(self, work: Work) -> Progress:
        """Append one summary; the first step only counts. `position` is the number of messages and
        notes in summaries at the beginning.

        Raises NOT_FOUND, CONFLICT while a run writes the transcript, DEPENDENCY_UNAVAILABLE,
        PLUGIN_FAILED, and the router's MeshError.
        """
        request = cast(compaction_pb.CompactTranscriptRequest, work.request)
        key = Key(work.tenant_id, request.session_id)
        tail = request.fresh_tail
        wanted = CompactionRequest(
            CompactionRequester(None, work.subject),
            tail_limits(tail.message_count, tail.token_count),
            request.models,
            budget_run_id="",
            agent_id="",
        )
        if not work.position:
            begin = await measure(self.compactor, key, wanted)
            return Progress(
                work.response, str(begin.covered_count), 0, begin.pending_count, is_done=begin.is_done
            )
        now = await advance(self.compactor, key, wanted)
        total = cast(compaction_pb.CompactTranscriptResponse, work.response)
        covered_before = int(work.position)
        if now.newest is not None and now.covered_count > covered_before:
            total.summary_entry_id = now.newest.entry_id
            total.summary_seq = now.newest.seq
            total.summary_token_count = now.newest.token_count
            total.summarized_entry_count = now.covered_count - covered_before
        if now.refusal is not None:
            total.refused_by, total.refusal = now.refusal.plugin_id, now.refusal.reason
        done_count = total.summarized_entry_count
        return Progress(total, work.position, done_count, done_count + now.pending_count, now.is_done)
