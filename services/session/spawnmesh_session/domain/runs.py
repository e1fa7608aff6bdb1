"""Runs: their states, the lease and its epoch, and their outcomes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

DEFAULT_RUN_TIMEOUT = timedelta(hours=1)
QUEUE_MARGIN = 100
"""If this many places of a tenant's queue are free, its runs are counted without a lock."""

FIRST_PAUSE = timedelta(seconds=1)
"""The pause of a run's first delay."""
LONGEST_PAUSE = timedelta(seconds=15)
"""The longest pause that is not asked for: an outage is noticed to be over about this late."""


class RunState(StrEnum):
    """The states of a run: QUEUED -> RUNNING -> FINALIZING -> SUCCEEDED.

    FINALIZING goes back to RUNNING for a revision or a pending message. A released run goes back to
    QUEUED. A RUNNING run that waits is WAITING_APPROVAL, for a person, or WAITING_BUDGET, and then
    QUEUED. Any live run can end as FAILED, TIMED_OUT, KILLED or INTERRUPTED. A terminal state is
    set once.
    """

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    FINALIZING = "FINALIZING"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    WAITING_BUDGET = "WAITING_BUDGET"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    KILLED = "KILLED"
    INTERRUPTED = "INTERRUPTED"


TERMINAL_RUN_STATES = frozenset(
    {RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.KILLED, RunState.INTERRUPTED}
)
HELD_RUN_STATES = frozenset({RunState.RUNNING, RunState.FINALIZING})


class Interrupt(StrEnum):
    """The part of its work that a held run must stop.

    TURN: an urgent message waits. RUN: a caller asked the run to end.
    """

    NONE = ""
    TURN = "TURN"
    RUN = "RUN"


@dataclass(frozen=True, slots=True)
class RunDelay:
    """The last delay of a run: why it could not go on, and when it may be claimed again.

    `count` is the number of its delays so far. Without any, the other fields are empty.
    """

    count: int = 0
    reason: str = ""
    message: str = ""
    not_before_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class UngrantedRevision:
    """A plugin wanted a revision of the answer, and `cap` is the bound that refused it."""

    plugin: str
    cap: str


@dataclass(frozen=True, slots=True)
class NewDelay:
    """The reason for which a released run cannot go on now, and the pause before its next claim."""

    reason: str
    message: str
    pause: timedelta


NO_DELAY = NewDelay("", "", timedelta())
"""The run may be claimed again at once."""


@dataclass(frozen=True, slots=True)
class RunOutputs:
    """The number of sets that a run has begun to publish, of those that it has published, of their
    files, and of the files' bytes.
    """

    begun_count: int = 0
    set_count: int = 0
    file_count: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run. `decided_entry_id` is the draft that was decided to be the answer, else empty.

    `decided_text_key` identifies the decided text by entry and hash. `capped_revisions` are those
    of the decided draft, and `finalized_by` are the plugins that declared it final.
    `superseded_entry_ids` are drafts that may never become the answer. `runner_id` names the last
    runner. Since `interrupt_time`, no draft is decided any more. It waits for the approval
    `approval_id`, or for the budget of `budget_session_id`, if one of them is not empty, since
    `wait_time`. Budgets have counted its work up to `counted_time`, except `uncounted_time` before
    its newest claim.
    """

    run_id: str
    session_id: str
    state: RunState
    epoch: int
    first_epoch: int
    attempt_count: int
    draft_entry_id: str
    decided_entry_id: str
    decided_text_key: str
    result_text: str
    error_reason: str
    error_message: str
    usage: dict[str, Any]
    revision_count: int
    deadline_time: datetime
    queue_time: datetime
    first_queue_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    delay: RunDelay = RunDelay()
    capped_revisions: tuple[UngrantedRevision, ...] = ()
    finalized_by: tuple[str, ...] = ()
    superseded_entry_ids: tuple[str, ...] = ()
    runner_id: str = ""
    interrupt_time: datetime | None = None
    approval_count: int = 0
    approval_id: str = ""
    wait_time: datetime | None = None
    budget_session_id: str = ""
    counted_time: datetime | None = None
    uncounted_time: timedelta = timedelta()
    outputs: RunOutputs = RunOutputs()
    reported_event_count: int = 0


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run to queue.

    Its deadline is `run_timeout` after it is queued. It can be claimed `max_attempts` times.
    """

    run_id: str
    run_timeout: timedelta
    max_attempts: int


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. If `is_masked`, its texts hold no secret."""

    state: RunState
    result_text: str = ""
    error_reason: str = ""
    error_message: str = ""
    usage: dict[str, Any] | None = None
    draft_entry_id: str = ""
    is_masked: bool = False


@dataclass(frozen=True, slots=True)
class LostEntry:
    """The locked entry of a run that the sweep took from the queue as lost.

    It `is_untouched` if no heartbeat, claim or release has reached the run since then.
    """

    is_past_deadline: bool
    attempts_left: int
    is_untouched: bool


@dataclass(frozen=True, slots=True)
class CallingRun:
    """The calling run, its session, and the epoch of its token.

    A token lives longer than the lease, so a call in a run's name checks that the lease is held.
    """

    session_id: str
    run_id: str
    epoch: int


def lease_lost(run: Run, epoch: int) -> MeshError:
    """Build the refusal for a runner that no longer holds the run."""
    return MeshError(
        Reason.RUN_LEASE_LOST,
        f"run {run.run_id} is {run.state} at epoch {run.epoch}, and you hold epoch {epoch}; "
        "stop working on it",
        facts={"run_id": run.run_id, "state": run.state, "epoch": run.epoch},
    )


def require_lease(run: Run, epoch: int) -> None:
    """Raise RUN_LEASE_LOST unless the run is held at this epoch."""
    if run.epoch != epoch or run.state not in HELD_RUN_STATES:
        raise lease_lost(run, epoch)


def run_deleted(run_id: str) -> MeshError:
    """Build the refusal for the runner of an absent run.

    Only tokens and rows of this service name runs, so an absent run was deleted with its session.
    """
    return MeshError(
        Reason.RUN_LEASE_LOST,
        f"run {run_id} was deleted with its session; stop working on it",
        facts={"run_id": run_id, "state": "DELETED"},
    )


def require_run(run_id: str, run: Run | None) -> Run:
    """Return the run. Raise RUN_LEASE_LOST if there is none."""
    if run is None:
        raise run_deleted(run_id)
    return run


def require_same_end(run: Run, epoch: int, state: RunState) -> Run:
    """Return a run that has ended in this state at this epoch.

    Raise RUN_LEASE_LOST for another epoch, and RUN_STATE for another state.
    """
    if run.epoch != epoch:
        raise lease_lost(run, epoch)
    if run.state != state:
        raise MeshError(
            Reason.RUN_STATE,
            f"run {run.run_id} has ended as {run.state} already",
            facts={"run_id": run.run_id, "state": run.state},
        )
    return run


INTERRUPTED = RunOutcome(
    state=RunState.INTERRUPTED,
    error_reason=Reason.INTERRUPTED,
    error_message="the run was interrupted",
)
"""The end of an interrupted run."""


def require_interrupted(run: Run) -> None:
    """Raise RUN_STATE unless a caller interrupted the run."""
    if run.interrupt_time is None:
        raise MeshError(
            Reason.RUN_STATE,
            f"run {run.run_id} was not interrupted; go on with it",
            facts={"run_id": run.run_id, "state": run.state},
        )


def require_undecided(run: Run) -> None:
    """Raise CONFLICT while the run is being ended with its answer."""
    if run.state == RunState.FINALIZING and run.decided_entry_id:
        raise MeshError(
            Reason.CONFLICT,
            f"run {run.run_id} is just being ended with its answer; call again",
            retry_after_seconds=1.0,
            facts={"session_id": run.session_id, "run_id": run.run_id},
        )


def delay_pause(earlier_count: int, min_pause: timedelta, jitter: float) -> timedelta:
    """Return the pause of a run that was delayed `earlier_count` times before.

    It is FIRST_PAUSE, doubled for each earlier delay, at most LONGEST_PAUSE, and at least
    `min_pause`. `jitter`, from 0 to 1, adds up to a quarter, so that runs which met the same outage
    do not return at once.
    """
    doubled: timedelta = FIRST_PAUSE * 2 ** min(earlier_count, 10)
    return max(min(doubled, LONGEST_PAUSE), min_pause) * (1 + jitter / 4)


def outcome_of_lost(run: Run, entry: LostEntry | None) -> RunOutcome | None:
    """Return how a run ends that no runner can finish; None if one can, or if it has ended."""
    if entry is None:
        return None
    is_lost = entry.attempts_left <= 0 and entry.is_untouched
    if run.interrupt_time is not None and (is_lost or entry.is_past_deadline):
        return INTERRUPTED
    if entry.is_past_deadline:
        return RunOutcome(
            state=RunState.TIMED_OUT,
            error_reason=Reason.RUN_TIMEOUT,
            error_message=describe_timeout(run),
        )
    if is_lost:
        return RunOutcome(
            state=RunState.FAILED,
            error_reason=Reason.ATTEMPTS_EXHAUSTED,
            error_message="every runner that held the run was lost",
        )
    return None


def describe_timeout(run: Run) -> str:
    """Return the message of a run that ends at its deadline. It names the last delay, if any."""
    text = "the run took longer than its run_timeout"
    if not run.delay.count:
        return text
    why = ": ".join(part for part in (run.delay.reason, run.delay.message) if part)
    times = "once" if run.delay.count == 1 else f"{run.delay.count} times"
    return f"{text}; it was delayed {times}, the last time because of {why}"


def has_queue_margin(waiting_count: int, max_queued_run_count: int) -> bool:
    """Return whether a count of waiting runs without a lock is enough.

    So many places are free that transactions at the same time do not fill the queue.
    """
    return waiting_count + QUEUE_MARGIN <= max_queued_run_count


def check_queue(waiting_count: int, max_queued_run_count: int) -> None:
    """Raise RUN_QUEUE_FULL if the maximum number of the tenant's runs waits."""
    if waiting_count >= max_queued_run_count:
        raise MeshError(
            Reason.RUN_QUEUE_FULL,
            "the tenant has as many waiting runs as it may; call again later",
            retry_after_seconds=1.0,
            facts={"limit": max_queued_run_count, "waiting": waiting_count},
        )
