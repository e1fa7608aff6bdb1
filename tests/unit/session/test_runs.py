"""The lease guard of a run, and a repeated end."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.runs import (
    HELD_RUN_STATES,
    Run,
    RunState,
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
