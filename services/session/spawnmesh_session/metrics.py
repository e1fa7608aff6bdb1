"""Metrics of runs."""

from opentelemetry.metrics import Meter
from spawnmesh_core.clock import utc_now

from spawnmesh_session.domain.runs import NewDelay, Run, RunOutcome, RunState

RUNTIME = "spawnmesh.session.runtime"
"""`subagent` is for the runners of the mesh, `external` for harnesses outside of it."""
_WAIT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


class RunMetrics:
    """Counters over all tenants in this process.

    A transaction that is repeated is counted again.
    """

    def __init__(self, meter: Meter) -> None:
        self._waits = meter.create_histogram(
            "spawnmesh.session.queue.wait",
            unit="s",
            description="Time that runs waited for their first claim, by runtime.",
            explicit_bucket_boundaries_advisory=_WAIT_SECONDS,
        )
        self._claims = meter.create_counter(
            "spawnmesh.session.claims",
            unit="{claim}",
            description=(
                "Claimed runs: first claims, takeovers from lost runners, and released runs; by runtime."
            ),
        )
        self._ended = meter.create_counter(
            "spawnmesh.session.runs.ended",
            unit="{run}",
            description="Ended runs by state; error.type is the reason of a run that did not succeed.",
        )
        self._delays = meter.create_counter(
            "spawnmesh.session.runs.delayed",
            unit="{delay}",
            description="Runs that went back to the queue; error.type says what was unavailable.",
        )
        self._revisions = meter.create_counter(
            "spawnmesh.session.revisions",
            unit="{revision}",
            description="Drafts that a plugin sent back.",
        )
        self._revisions.add(0)  # Otherwise a dashboard has no data before the first.

    def claimed(self, run: Run, *, runtime: str, was_held: bool) -> None:
        """Count a claim of a run of this runtime. If `was_held`, the runner before did not release
        the run.
        """
        is_first = run.epoch == run.first_epoch
        of_runtime = {RUNTIME: runtime.lower()}
        self._claims.add(
            1,
            {
                **of_runtime,
                "spawnmesh.session.claim": "first" if is_first else "takeover" if was_held else "released",
            },
        )
        if is_first:
            self._waits.record(max(0.0, (utc_now() - run.queue_time).total_seconds()), of_runtime)

    def ended(self, outcome: RunOutcome) -> None:
        """Count a run that has reached a terminal state."""
        attributes = {"spawnmesh.session.run.state": outcome.state.lower()}
        if outcome.state != RunState.SUCCEEDED and outcome.error_reason:
            attributes["error.type"] = str(outcome.error_reason)
        self._ended.add(1, attributes)

    def delayed(self, delay: NewDelay) -> None:
        """Count a run that cannot go on now."""
        self._delays.add(1, {"error.type": str(delay.reason)})

    def revised(self) -> None:
        """Count a draft that was sent back."""
        self._revisions.add(1)
