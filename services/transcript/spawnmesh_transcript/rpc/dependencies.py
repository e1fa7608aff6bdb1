"""The dependencies of the RPCs."""

from dataclasses import dataclass

from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener
from spawnmesh_postgres.long_running.operations import Operations
from spawnmesh_runtime.cpu_workers import CpuWorkers
from spawnmesh_runtime.limiter import FairLimiter

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.metrics import StubMetrics
from spawnmesh_transcript.operations.activity_recorder import ActivityRecorder
from spawnmesh_transcript.operations.append_queue import AppendQueue
from spawnmesh_transcript.operations.bulk_threads import BulkThreads
from spawnmesh_transcript.operations.change_notifier import ChangeNotifier
from spawnmesh_transcript.operations.compaction.recorded import RecordedCompactor
from spawnmesh_transcript.operations.live_reads import LiveReads
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.operations.policy_cache import TranscriptPolicyCache
from spawnmesh_transcript.operations.search.find_entries import SearchDependencies
from spawnmesh_transcript.operations.session_files.import_threads import ImportThreads
from spawnmesh_transcript.operations.tiering import PayloadTiering
from spawnmesh_transcript.operations.verification.report import VerificationReporter


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Everything that `app.py` opens for the RPCs."""

    database: Database
    listener: Listener
    notifier: ChangeNotifier
    poll_limit: FairLimiter
    """Limit of concurrent reads for followers and watchers; tenants take turns."""
    live_reads: LiveReads
    policies: TranscriptPolicyCache
    activities: ActivityRecorder
    append_queue: AppendQueue
    blobs: BlobStore
    uploader: PayloadUploader
    workers: CpuWorkers
    import_threads: ImportThreads
    bulk_threads: BulkThreads
    search: SearchDependencies
    tiering: PayloadTiering
    operations: Operations
    compactor: RecordedCompactor
    stub_metrics: StubMetrics
    verification: VerificationReporter
