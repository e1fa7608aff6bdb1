"""The publication of summaries to observers: the handler of its background jobs."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh.hook.v1 import observed_pb2
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import SummaryMethod
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.jobs.job import Again, BackoffPolicy, ClaimedJob, JobKind
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.clients.hooks import publish_events
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import summaries as summary_store
from spawnmesh_transcript.store.summaries import PublishedSummary

_A_DAY = BackoffPolicy(kept_for=timedelta(days=1))
_CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class SummaryPublisher:
    """Publishes AFTER_COMPACTION for each summary at least once, with the same event key each time.

    A summary that was deleted, or whose transcript was, is not published.
    """

    database: Database
    hooks: Peer

    def kind(self) -> JobKind:
        """Return the kind of the jobs. A job is given up after a day."""
        return JobKind(summary_store.PUBLISH_SUMMARY, self.publish, _CONCURRENCY, _A_DAY)

    async def publish(self, job: ClaimedJob) -> Again | None:
        """Store the event in the hook service. Raises the service's MeshError."""
        key = Key(job.tenant_id, job.arguments["session_id"])
        summary = await summary_store.find_published_summary(
            self.database, key, job.arguments["seq"], job.key
        )
        if summary is not None:
            await publish_events(self.hooks, job.tenant_id, [_event(summary)])
        return None


def _event(summary: PublishedSummary) -> observed_pb2.ObservedEvent:
    return observed_pb2.ObservedEvent(
        event_key=f"after_compaction:v1:{summary.entry_id}",
        event_time=timestamp_of(summary.create_time),
        session_id=summary.session_id,
        run_id=summary.run_id,
        after_compaction=observed_pb2.AfterCompactionEvent(
            entry_id=summary.entry_id,
            source_entry_count=summary.source_entry_count,
            source_token_count=summary.source_token_count,
            summary_token_count=summary.token_count,
            method=SummaryMethod.Value(f"SUMMARY_METHOD_{summary.method}"),
            model=summary.model,
            summary=pb.EntryBody.FromString(summary.body).compaction.summary,
        ),
    )
