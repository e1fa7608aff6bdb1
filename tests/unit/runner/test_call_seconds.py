"""How long a model call may take."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.generate import call_seconds

NO_MESH: Any = None


def assignment(claimed: pb.ClaimedRun, *, seconds_ago: float = 0.0) -> Assignment:
    """A run that was claimed so long ago."""
    began = monotonic_seconds() - seconds_ago
    return Assignment(claimed, NO_MESH, Path(), tools={}, generate_timeout_seconds=600.0, began=began)


@pytest.mark.parametrize("clock_behind", [timedelta(days=-2), timedelta(0), timedelta(days=2)])
def test_a_model_call_has_what_is_left_of_its_run_whatever_time_the_machine_says_it_is(clock_behind: timedelta) -> None:
    claimed = pb.ClaimedRun()
    claimed.time_left.FromTimedelta(timedelta(seconds=130))
    claimed.deadline_time.FromDatetime(datetime.now(UTC) + clock_behind + timedelta(seconds=130))
    assert 30.0 < call_seconds(assignment(claimed, seconds_ago=100.0)) <= 35.0
    assert call_seconds(assignment(claimed, seconds_ago=1_000.0)) == 5.0


def test_a_model_call_has_no_more_than_one_may_take() -> None:
    claimed = pb.ClaimedRun()
    assert call_seconds(assignment(claimed)) == 600.0
    claimed.time_left.FromTimedelta(timedelta(hours=2))
    assert call_seconds(assignment(claimed)) == 600.0
