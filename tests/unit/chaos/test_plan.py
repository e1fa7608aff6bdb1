"""The plan of random faults: a function of its seed, within its bounds."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_devstack.members import SERVICES
from spawnmesh_runner.clients.retry import GIVE_UP_AFTER_SECONDS

from tests.chaos.random_faults.plan import (
    MODEL,
    NODES,
    PLUGIN,
    POSTGRES,
    REPLICATED,
    S3,
    SHORT_SEED,
    SHORT_WINDOW_SECONDS,
    FaultKind,
    group_of,
    make_outages,
    make_plan,
)

SEEDS = st.integers(0, 2**32)
WINDOWS = st.floats(5.0, 1800.0)


@given(SEEDS, WINDOWS)
@settings(max_examples=50, deadline=None)
def test_same_seed_gives_same_plan(seed: int, window: float) -> None:
    assert make_plan(seed, window) == make_plan(seed, window)


@given(SEEDS, WINDOWS)
@settings(max_examples=100, deadline=None)
def test_faults_are_over_within_the_window_and_never_two_on_one_part(seed: int, window: float) -> None:
    plan = make_plan(seed, window)
    assert all(fault.start_seconds > 0 and fault.end_seconds < window for fault in plan)
    assert [fault.start_seconds for fault in plan] == sorted(fault.start_seconds for fault in plan)
    for fault in plan:
        active = [
            other
            for other in plan
            if other is not fault and other.start_seconds <= fault.start_seconds < other.end_seconds
        ]
        assert len(active) < 2
        assert group_of(fault.target) not in {group_of(other.target) for other in active}


def test_nodes_of_a_cluster_meet_the_faults_of_the_process_of_postgresql() -> None:
    faults = [fault for seed in range(20) for fault in make_plan(seed, 900.0, NODES)]
    for node in NODES:
        kinds = {fault.kind for fault in faults if fault.target == node}
        assert kinds == {FaultKind.KILL, FaultKind.PAUSE, FaultKind.AWAY}
        assert group_of(node) == POSTGRES


def test_faults_stay_below_the_longest_time_of_their_kind() -> None:
    faults = [fault for seed in range(20) for fault in make_plan(seed, 600.0)]
    longest = {kind: max(f.seconds for f in faults if f.kind is kind) for kind in FaultKind}
    assert longest[FaultKind.PAUSE] <= 60
    assert longest[FaultKind.AWAY] <= 90
    assert longest[FaultKind.PAUSE] > 30
    assert longest[FaultKind.AWAY] > 45


def test_a_quarter_of_an_hour_has_faults_of_every_kind() -> None:
    for seed in range(20):
        assert {fault.kind for fault in make_plan(seed, 900.0)} == set(FaultKind)


def test_outages_take_every_service_away_and_never_two_at_once() -> None:
    plan = make_outages(90.0)
    assert {fault.target for fault in plan if fault.kind is FaultKind.AWAY} == {
        *REPLICATED,
        POSTGRES,
        S3,
    }
    assert {fault.target for fault in plan if fault.kind is FaultKind.KILL} == {*REPLICATED, PLUGIN, MODEL}
    assert {fault.target for fault in plan if fault.kind is FaultKind.HANG} == {*SERVICES}
    hung = {fault.target for fault in plan if fault.kind in (FaultKind.PAUSE, FaultKind.HOLD)}
    assert hung == {*REPLICATED, POSTGRES, S3, PLUGIN, MODEL}
    assert all(later.start_seconds > earlier.end_seconds for earlier, later in pairwise(plan))


def test_outages_can_be_chosen_by_their_kind_and_target() -> None:
    assert [str(fault) for fault in make_outages(90.0, "pause hook-")] == ["pause hook-worker for 90.0 s"]
    assert {fault.kind for fault in make_outages(90.0, "kill")} == {FaultKind.KILL}
    assert make_outages(90.0, "burn") == []


def test_short_plan_disturbs_every_store_and_outlasts_what_a_runner_waits() -> None:
    plan = make_plan(SHORT_SEED, SHORT_WINDOW_SECONDS)
    assert {fault.kind for fault in plan} == set(FaultKind)
    assert {POSTGRES, S3, PLUGIN} <= {fault.target for fault in plan}
    outages = [fault for fault in plan if fault.kind in (FaultKind.AWAY, FaultKind.HANG)]
    assert max(fault.seconds for fault in outages) > 1.2 * GIVE_UP_AFTER_SECONDS
