"""The timeout of a model call."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.generate import model_call_seconds

NO_MESH: Any = None


def assignment(claimed: pb.ClaimedRun, *, seconds_ago: float = 0.0) -> Assignment:
    """Return a run that was claimed so many seconds ago."""
    began = monotonic_seconds() - seconds_ago
    return Assignment(
        claimed,
        NO_MESH,
        Path(),
        max_workspace_bytes=0,
        tools={},
        generate_timeout_seconds=600.0,
        start_seconds=began,
    )


@pytest.mark.parametrize("clock_behind", [timedelta(days=-2), timedelta(0), timedelta(days=2)])
def test_a_model_call_has_the_time_left_whatever_the_wall_clock_says(
    clock_behind: timedelta,
) -> None:
    claimed = pb.ClaimedRun()
    claimed.time_left.FromTimedelta(timedelta(seconds=130))
    claimed.deadline_time.FromDatetime(datetime.now(UTC) + clock_behind + timedelta(seconds=130))
    assert 5.0 < model_call_seconds(assignment(claimed, seconds_ago=100.0)) <= 35.0
    assert model_call_seconds(assignment(claimed, seconds_ago=1_000.0)) == 5.0


def test_a_model_call_has_at_most_the_call_timeout() -> None:
    claimed = pb.ClaimedRun()
    claimed.time_left.FromTimedelta(timedelta(hours=2))
    assert model_call_seconds(assignment(claimed)) == 600.0
