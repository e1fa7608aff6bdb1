"""The breakers of a replica: one for each registration of a plugin of a tenant."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_hook.breakers import Breakers
from spawnmesh_hook.domain.breaker import FAILURES_TO_OPEN, FIRST_PAUSE_SECONDS
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Plugin

PLUGIN = Plugin(
    "p", "grpc://host:1", (HookKind.BEFORE_SPAWN,), 0, timedelta(seconds=15), FailurePolicy.OPEN, (), generation=1
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breakers(clock: Clock) -> Breakers:
    """With the plugin of tenant `t` cut off."""
    opened = Breakers(clock)
    for _ in range(FAILURES_TO_OPEN):
        assert opened.admit("t", PLUGIN)
        opened.failed("t", PLUGIN)
    assert not opened.admit("t", PLUGIN)
    return opened


def test_one_probe_at_a_time_finds_out_whether_it_is_back(breakers: Breakers, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_SECONDS
    assert [breakers.admit("t", PLUGIN) for _ in range(3)] == [True, False, False]
    breakers.succeeded("t", PLUGIN)
    assert [breakers.admit("t", PLUGIN) for _ in range(3)] == [True] * 3


def test_a_probe_that_fails_cuts_it_off_for_twice_as_long(breakers: Breakers, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_SECONDS
    assert breakers.admit("t", PLUGIN)
    breakers.failed("t", PLUGIN)
    clock.now += FIRST_PAUSE_SECONDS
    assert not breakers.admit("t", PLUGIN)
    clock.now += FIRST_PAUSE_SECONDS
    assert breakers.admit("t", PLUGIN)


def test_a_probe_whose_caller_went_away_is_followed_by_another(breakers: Breakers, clock: Clock) -> None:
    clock.now += FIRST_PAUSE_SECONDS
    assert breakers.admit("t", PLUGIN)
    breakers.given_up("t", PLUGIN)
    assert [breakers.admit("t", PLUGIN) for _ in range(2)] == [True, False]


def test_nobody_elses_plugin_is_cut_off_and_neither_is_a_new_registration(breakers: Breakers) -> None:
    assert breakers.admit("another tenant", PLUGIN)
    assert breakers.admit("t", replace(PLUGIN, name="q"))
    assert breakers.admit("t", replace(PLUGIN, generation=2))
