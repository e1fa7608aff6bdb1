"""What becomes of runs, as metrics."""

from opentelemetry.metrics import Meter
from psycopg.rows import DictRow
from spawnmesh_core.clock import utc_now
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain import Ending, RunState

_WAIT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_OTHER = "_OTHER"  # What the OpenTelemetry conventions call an error outside of a known set; runners may name any.


class RunMetrics:
    """Counts over all tenants, in the process that does it. What is repeated because its transaction failed is counted again."""

    def __init__(self, meter: Meter) -> None:
        self._waits = meter.create_histogram(
            "spawnmesh.session.queue.wait",
            unit="s",
            description="How long runs waited for their first claim.",
            explicit_bucket_boundaries_advisory=_WAIT_SECONDS,
        )
        self._claims = meter.create_counter(
            "spawnmesh.session.claims",
            unit="{claim}",
            description="Runs handed out: for the first time, taken over from a runner that was lost, or after one gave them back.",
        )
        self._ended = meter.create_counter(
            "spawnmesh.session.runs.ended",
            unit="{run}",
            description="Runs that ended, by state; error.type is the reason of one that did not succeed.",
        )
        self._revisions = meter.create_counter(
            "spawnmesh.session.revisions",
            unit="{revision}",
            description="Drafts that a plugin sent back.",
        )

    def claimed(self, run: DictRow) -> None:
        """A runner has the run."""
        is_first = run["epoch"] == run["first_epoch"]
        self._claims.add(
            1, {"spawnmesh.session.claim": "first" if is_first else "takeover" if run["was_held"] else "given_back"}
        )
        if is_first:
            self._waits.record(max(0.0, (utc_now() - run["queue_time"]).total_seconds()))

    def ended(self, ending: Ending) -> None:
        """The run has a terminal state."""
        attributes = {"spawnmesh.session.run.state": ending.state.lower()}
        if ending.state != RunState.SUCCEEDED and ending.error_reason:
            attributes["error.type"] = ending.error_reason if ending.error_reason in _KNOWN else _OTHER
        self._ended.add(1, attributes)

    def revised(self) -> None:
        """A draft was sent back."""
        self._revisions.add(1)


_KNOWN = frozenset(
    {*(reason.value for reason in Reason), "RUNNER_ERROR", "KILLED", "RUN_TIMEOUT", "ATTEMPTS_EXHAUSTED"}
)
