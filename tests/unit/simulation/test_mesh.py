"""The simulated mesh agrees with what queueing theory says."""

from dataclasses import replace

import pytest

from tests.simulation.__main__ import deployment_for, first_saturated
from tests.simulation.costs import POSTGRES, Costs
from tests.simulation.mesh import Deployment, Load, SimulatedMesh

COSTS = Costs(
    run={"session": 0.02, "runner": 0.01, POSTGRES: 0.03},
    turn={"session": 0.0, "runner": 0.01, POSTGRES: 0.01},
    files={"session": 0.01, "runner": 0.0, POSTGRES: 0.0},
    run_commits=10,
    turn_commits=2,
    claims={1: 0.002, 10_000: 0.022},
)
LOAD = Load(tenants=10_000, sessions_a_day=864_000, peak=2.0, turns=0.01, model_seconds=1.0, with_files=0.0)
"""20 sessions a second."""
DEPLOYMENT = Deployment({"session": 1, "runner": 1}, database_cores=2, slots_each=1_000)


def test_run__a_station_is_busy_for_its_cost_times_the_rate() -> None:
    busy = SimulatedMesh(DEPLOYMENT, LOAD, COSTS, seed=1).run(600).busy
    assert busy["session"] == pytest.approx(20 * 0.02, rel=0.1)
    # Two claims look for each run, and one looks once a second.
    assert busy[POSTGRES] == pytest.approx((20 * (0.03 + 2 * 0.02) + 0.02) / 2, rel=0.1)


def test_run__files_cost_what_they_add() -> None:
    busy = SimulatedMesh(DEPLOYMENT, replace(LOAD, with_files=1.0), COSTS, seed=1).run(600).busy
    assert busy["session"] == pytest.approx(20 * 0.03, rel=0.1)


def test_run__a_slot_is_held_while_the_model_answers() -> None:
    busy = SimulatedMesh(DEPLOYMENT, replace(LOAD, model_seconds=5.0), COSTS, seed=1).run(600).busy
    assert busy["slots"] == pytest.approx(20 * 5.0 / 1_000, rel=0.15)


def test_run__runs_wait_where_slots_are_few() -> None:
    few = replace(DEPLOYMENT, slots_each=18)
    assert SimulatedMesh(DEPLOYMENT, LOAD, COSTS, seed=1).run(60).wait_p99("slots") == 0
    assert SimulatedMesh(few, LOAD, COSTS, seed=1).run(60).wait_p99("slots") > 1


def test_run__the_same_seed_gives_the_same_result() -> None:
    first, again = (SimulatedMesh(DEPLOYMENT, LOAD, COSTS, seed=7).run(30) for _ in range(2))
    assert (first.busy, first.ended) == (again.busy, again.ended)


def test_first_saturated__processes_can_be_added_and_the_database_cannot() -> None:
    deployment = replace(deployment_for(COSTS, LOAD), database_cores=3)
    factor, name, _ = first_saturated(deployment, LOAD, COSTS)
    assert name == POSTGRES
    # Each session costs 0.07 s there, and each tenant makes a claim dearer.
    assert 1.1 < factor < 2.2
