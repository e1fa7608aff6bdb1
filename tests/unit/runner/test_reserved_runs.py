"""The places that a runner keeps free for tenants without running runs."""

from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh_runner.settings import RunnerSettings

_PEERS = ("session", "transcript", "model_router", "attachment_blob", "hook")
_NEEDED: dict[str, Any] = {"workspace_root": "/w", **{f"{peer}_target": "h:1" for peer in _PEERS}}


@pytest.mark.parametrize(
    ("chosen", "reserved"),
    [
        ({}, 1),
        ({"max_runs": 4}, 1),
        ({"max_runs": 3}, 0),
        ({"reserved_runs": 0}, 0),
        ({"max_runs": 2, "reserved_runs": 1}, 1),
    ],
)
def test_one_of_four_or_more_is_reserved_by_default(chosen: dict[str, Any], reserved: int) -> None:
    assert RunnerSettings(**_NEEDED, **chosen).reserved_run_count == reserved


def test_a_runner_may_not_reserve_all_its_places() -> None:
    with pytest.raises(ValidationError, match="reserved_runs must be less than max_runs"):
        RunnerSettings(**_NEEDED, max_runs=2, reserved_runs=2)
