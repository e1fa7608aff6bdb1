"""The circuit breakers of a replica: one for each registration of a plugin or webhook."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_hook.domain.circuit_breaker import (
    FAILURES_TO_OPEN,
    FIRST_OPEN_SECONDS,
    LONGEST_OPEN_SECONDS,
    LONGEST_OPEN_SECONDS_OF_GATES,
)
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Plugin, registration_key
from spawnmesh_hook.operations.circuit_breakers import CircuitBreakers

PLUGIN = Plugin(
    "p",
    "grpc://host:1",
    (HookKind.BEFORE_SPAWN,),
    0,
    timedelta(seconds=15),
    FailurePolicy.OPEN,
    (),
    generation=1,
)


KEY = registration_key("t", PLUGIN)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breakers(clock: Clock) -> CircuitBreakers:
    """Circuit breakers with an open one for the plugin of tenant `t`."""
    opened = CircuitBreakers(clock)
    for _ in range(FAILURES_TO_OPEN):
        assert opened.admit(KEY)
        opened.call_failed(KEY, LONGEST_OPEN_SECONDS)
    assert not opened.admit(KEY)
    return opened


def test_one_probe_at_a_time_while_half_open(breakers: CircuitBreakers, clock: Clock) -> None:
    clock.now += FIRST_OPEN_SECONDS
    assert [breakers.admit(KEY) for _ in range(3)] == [True, False, False]
    breakers.call_succeeded(KEY)
    assert [breakers.admit(KEY) for _ in range(3)] == [True] * 3


def test_a_failed_probe_doubles_the_open_time(breakers: CircuitBreakers, clock: Clock) -> None:
    clock.now += FIRST_OPEN_SECONDS
    assert breakers.admit(KEY)
    breakers.call_failed(KEY, LONGEST_OPEN_SECONDS)
    clock.now += FIRST_OPEN_SECONDS
    assert not breakers.admit(KEY)
    clock.now += FIRST_OPEN_SECONDS
    assert breakers.admit(KEY)


def test_a_cancelled_probe_is_followed_by_another(breakers: CircuitBreakers, clock: Clock) -> None:
    clock.now += FIRST_OPEN_SECONDS
    assert breakers.admit(KEY)
    breakers.call_cancelled(KEY)
    assert [breakers.admit(KEY) for _ in range(2)] == [True, False]


def test_other_tenants_names_and_registrations_have_closed_breakers(breakers: CircuitBreakers) -> None:
    assert breakers.admit(registration_key("another tenant", PLUGIN))
    assert breakers.admit(registration_key("t", replace(PLUGIN, name="q")))
    assert breakers.admit(registration_key("t", replace(PLUGIN, generation=2)))


def test_a_gate_is_asked_again_within_the_same_interval_however_often_it_failed(
    breakers: CircuitBreakers, clock: Clock
) -> None:
    gate = registration_key("t", replace(PLUGIN, name="gate", failure_policy=FailurePolicy.CLOSED))
    for _ in range(FAILURES_TO_OPEN):
        breakers.call_failed(gate, LONGEST_OPEN_SECONDS_OF_GATES)
    for _ in range(10):
        assert not breakers.admit(gate)
        clock.now += FIRST_OPEN_SECONDS
        assert breakers.admit(gate)
        breakers.call_failed(gate, LONGEST_OPEN_SECONDS_OF_GATES)


def test_a_failure_of_a_new_registration_forgets_the_breaker_of_the_earlier_one(
    breakers: CircuitBreakers,
) -> None:
    breakers.call_failed(registration_key("t", replace(PLUGIN, generation=2)), LONGEST_OPEN_SECONDS)
    assert breakers.admit(KEY)
