"""The budget that a model gives a child."""

from typing import Any

import pytest
from pydantic import ValidationError
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh_runner.tools.calling.spawn_budget import render_budget
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN


def rendered(budget: Any) -> pb.Budget | None:
    return render_budget(SESSIONS_SPAWN.parse({"task": "count", "budget": budget}).budget)


def minutes(count: float) -> pb.Budget:
    budget = pb.Budget()
    budget.max_run_time.FromMilliseconds(int(count * 60_000))
    return budget


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_tokens": 200_000}, pb.Budget(max_token_count=200_000)),
        ({"max_model_calls": 40, "max_tokens": None}, pb.Budget(max_model_call_count=40)),
        ({"max_cost": 0.29}, pb.Budget(max_cost_micros=290_000)),
        ({"max_cost": 1}, pb.Budget(max_cost_micros=1_000_000)),
        ({"max_cost": 4.35}, pb.Budget(max_cost_micros=4_350_000)),
        ({"max_cost": 0.0000001}, pb.Budget(max_cost_micros=1)),
        ({"max_minutes": 10}, minutes(10)),
        ({"max_minutes": 0.5}, minutes(0.5)),
        ({"max_minutes": 1e-9}, minutes(1 / 60)),
        (None, None),
    ],
)
def test_limits_are_those_of_the_contract(given: Any, expected: pb.Budget | None) -> None:
    assert rendered(given) == expected


@pytest.mark.parametrize("limit", ["max_tokens", "max_cost", "max_model_calls", "max_minutes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e30, "much"])
def test_a_limit_that_is_none_is_refused(limit: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        rendered({limit: value})


@pytest.mark.parametrize("given", [{}, {"max_cost": None}, {"max_coins": 3}, 7])
def test_a_budget_without_a_limit_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        rendered(given)


def test_without_a_budget_there_is_none() -> None:
    assert SESSIONS_SPAWN.parse({"task": "count"}).budget is None
