"""The span of a run: from its queueing to its end, with the reason if it has no answer.

Its id follows from the id of the run. So attempts at the run are its children while it lasts, and
a worker records it when the run has ended: whichever process ended it, and also if no runner ever
worked on it.
"""

from dataclasses import dataclass
from datetime import datetime

from spawnmesh_core.clock import utc_now
from spawnmesh_postgres.jobs.job import ClaimedJob, JobArguments
from spawnmesh_runtime.telemetry import derived_traceparent, record_derived

from spawnmesh_session.domain.runs import Run, RunOutcome, RunState
from spawnmesh_session.domain.sessions import Session

_ERRORS = frozenset({RunState.FAILED, RunState.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class RunSpan:
    """The span of an ended run. `error_type` is the reason of a run that failed or timed out."""

    agent_id: str
    queue_time: datetime
    end_time: datetime
    error_type: str

    @classmethod
    def of(cls, session: Session, run: Run, outcome: RunOutcome) -> "RunSpan":
        """Return the span of a run that ends now."""
        # The run's own queue time changes when it is released; its deadline does not.
        queue_time = run.deadline_time - session.run_timeout
        is_error = outcome.state in _ERRORS
        return cls(session.agent_id, queue_time, utc_now(), str(outcome.error_reason) if is_error else "")

    @classmethod
    def from_arguments(cls, arguments: JobArguments) -> "RunSpan | None":
        """Return the span in the arguments of a job; None if they have none."""
        if "queue_time" not in arguments:
            return None
        queue_time, end_time = (
            datetime.fromisoformat(str(arguments[name])) for name in ("queue_time", "end_time")
        )
        return cls(str(arguments["agent_id"]), queue_time, end_time, str(arguments["error_type"]))

    def to_arguments(self) -> JobArguments:
        """Return the arguments that `from_arguments` reads."""
        return {
            "agent_id": self.agent_id,
            "queue_time": self.queue_time.isoformat(),
            "end_time": self.end_time.isoformat(),
            "error_type": self.error_type,
        }

    def record(self, traceparent: str, session_id: str, run_id: str, state: str) -> None:
        """Record the span as a child of the spawn, whose `traceparent` this is."""
        record_derived(
            traceparent,
            run_id,
            f"run {self.agent_id}",
            (self.queue_time, self.end_time),
            {
                "gen_ai.agent.name": self.agent_id,
                "gen_ai.conversation.id": session_id,
                "spawnmesh.run.id": run_id,
                "spawnmesh.session.run.state": state,
            },
            error_type=self.error_type,
        )


def record_span_of(job: ClaimedJob, run_id: str) -> None:
    """Record the span that the job of an ended run has in its arguments, if there is one."""
    span = RunSpan.from_arguments(job.arguments)
    if span is not None:
        outcome = str(job.arguments["outcome"])
        span.record(job.traceparent, str(job.arguments["session_id"]), run_id, outcome)


def run_traceparent(session: Session, run_id: str) -> str:
    """Return the `traceparent` of the run's span; empty if the session has no trace."""
    return derived_traceparent(session.traceparent, run_id)
