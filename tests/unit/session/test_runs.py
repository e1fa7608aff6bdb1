"""The lease guard of a run, a repeated end, and delays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.runs import (
    FIRST_PAUSE,
    HELD_RUN_STATES,
    LONGEST_PAUSE,
    LostEntry,
    Run,
    RunDelay,
    RunState,
    delay_pause,
    describe_timeout,
    outcome_of_lost,
    require_lease,
    require_run,
    require_same_end,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RUN = Run(
    run_id="run_1",
    session_id="ses_1",
    state=RunState.RUNNING,
    epoch=3,
    first_epoch=1,
    attempt_count=1,
    draft_entry_id="",
    decided_entry_id="",
    decided_text_key="",
    result_text="",
    error_reason="",
    error_message="",
    usage={},
    revision_count=0,
    deadline_time=NOW,
    queue_time=NOW,
    first_queue_time=NOW,
    start_time=NOW,
    end_time=None,
)


@pytest.mark.parametrize("state", sorted(HELD_RUN_STATES))
def test_lease_is_held_at_the_epoch_of_the_run(state: RunState) -> None:
    require_lease(replace(RUN, state=state), 3)


@pytest.mark.parametrize(
    ("state", "epoch"),
    [
        (RunState.RUNNING, 2),
        (RunState.RUNNING, 4),
        *((state, 3) for state in sorted(set(RunState) - HELD_RUN_STATES)),
    ],
)
def test_lease_is_lost_at_another_epoch_or_in_a_state_that_nobody_holds(state: RunState, epoch: int) -> None:
    with pytest.raises(MeshError) as caught:
        require_lease(replace(RUN, state=state), epoch)
    assert caught.value.reason is Reason.RUN_LEASE_LOST
    assert caught.value.facts == {"run_id": "run_1", "state": state.value, "epoch": "3"}


def test_absent_run_is_a_lost_lease() -> None:
    assert require_run("run_1", RUN) is RUN
    with pytest.raises(MeshError) as caught:
        require_run("run_1", None)
    assert caught.value.reason is Reason.RUN_LEASE_LOST
    assert caught.value.facts == {"run_id": "run_1", "state": "DELETED"}


def test_repeated_end_returns_the_run() -> None:
    ended = replace(RUN, state=RunState.FAILED)
    assert require_same_end(ended, 3, RunState.FAILED) is ended


@pytest.mark.parametrize(
    ("epoch", "state", "reason", "facts"),
    [
        (2, RunState.FAILED, Reason.RUN_LEASE_LOST, {"run_id": "run_1", "state": "FAILED", "epoch": "3"}),
        (3, RunState.KILLED, Reason.RUN_STATE, {"run_id": "run_1", "state": "FAILED"}),
    ],
)
def test_end_at_another_epoch_or_in_another_state_is_refused(
    epoch: int, state: RunState, reason: Reason, facts: dict[str, str]
) -> None:
    with pytest.raises(MeshError) as caught:
        require_same_end(replace(RUN, state=RunState.FAILED), epoch, state)
    assert caught.value.reason is reason
    assert caught.value.facts == facts


@given(
    st.integers(min_value=0, max_value=100_000),
    st.timedeltas(min_value=timedelta(), max_value=timedelta(days=1)),
    st.floats(min_value=0, max_value=1),
)
def test_the_pause_of_a_delay_is_bounded_and_at_least_what_was_asked_for(
    earlier_count: int, asked: timedelta, jitter: float
) -> None:
    pause = delay_pause(earlier_count, asked, jitter)
    assert max(FIRST_PAUSE, asked) <= pause <= max(LONGEST_PAUSE, asked) * 1.25


def test_the_pause_of_a_delay_doubles_up_to_the_longest() -> None:
    pauses = [delay_pause(count, timedelta(), 0).total_seconds() for count in range(6)]
    assert pauses == [1, 2, 4, 8, 15, 15]
    assert delay_pause(0, timedelta(), 1).total_seconds() == 1.25


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (LostEntry(is_past_deadline=True, attempts_left=0, is_untouched=True), "RUN_TIMEOUT"),
        (LostEntry(is_past_deadline=True, attempts_left=1, is_untouched=False), "RUN_TIMEOUT"),
        (LostEntry(is_past_deadline=False, attempts_left=0, is_untouched=True), "ATTEMPTS_EXHAUSTED"),
        (LostEntry(is_past_deadline=False, attempts_left=0, is_untouched=False), None),
        (LostEntry(is_past_deadline=False, attempts_left=1, is_untouched=True), None),
        (None, None),
    ],
)
def test_a_lost_run_ends_at_its_deadline_or_without_attempts(
    entry: LostEntry | None, reason: str | None
) -> None:
    outcome = outcome_of_lost(RUN, entry)
    assert (outcome and outcome.error_reason) == reason
    # One that was interrupted ends then as well, and as what it is.
    outcome = outcome_of_lost(replace(RUN, interrupt_time=RUN.queue_time), entry)
    assert (outcome and outcome.state) == (reason and RunState.INTERRUPTED)


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (RunDelay(), "the run took longer than its run_timeout"),
        (
            RunDelay(1, "PLUGIN_FAILED", ""),
            "the run took longer than its run_timeout; it was delayed once, the last time because of"
            " PLUGIN_FAILED",
        ),
        (
            RunDelay(3, "DEPENDENCY_UNAVAILABLE", "S3 does not answer"),
            "the run took longer than its run_timeout; it was delayed 3 times, the last time because of"
            " DEPENDENCY_UNAVAILABLE: S3 does not answer",
        ),
    ],
)
def test_a_run_that_ends_at_its_deadline_names_its_last_delay(delay: RunDelay, text: str) -> None:
    assert describe_timeout(replace(RUN, delay=delay)) == text
