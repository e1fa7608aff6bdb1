"""Which credential is used, and what rests a candidate."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.cooldown import Cooldown, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason as R
from spawnmesh_model_router.domain.rotation import other_credential, pick_credential, resting

NOW = datetime(2025, 5, 1, tzinfo=UTC)
names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


def until(seconds: int, scope: Scope = Scope.CREDENTIAL) -> Cooldown:
    return Cooldown(scope, NOW + timedelta(seconds=seconds), 1, R.AUTH, NOW)


@given(names, st.integers(0, 100))
def test_each_credential_has_its_turn_once_in_a_round(credentials: list[str], first: int) -> None:
    round_ = [pick_credential(credentials, first + turn, {}, NOW) for turn in range(len(credentials))]
    assert sorted(map(str, round_)) == sorted(credentials)


@given(names, st.integers(0, 100), st.sets(st.sampled_from("abcdef")))
def test_a_resting_credential_is_only_picked_when_all_rest(credentials: list[str], turn: int, tired: set[str]) -> None:
    picked = pick_credential(credentials, turn, {name: until(60) for name in tired}, NOW)
    assert picked in credentials
    assert (picked in tired) == (set(credentials) <= tired)


def test_when_all_rest_the_first_to_wake_is_picked() -> None:
    assert pick_credential(["a", "b", "c"], 0, {"a": until(30), "b": until(10), "c": until(20)}, NOW) == "b"
    assert pick_credential([], 0, {}, NOW) is None


def test_a_rest_that_is_over_counts_for_nothing() -> None:
    assert pick_credential(["a"], 5, {"a": until(-1)}, NOW) == "a"
    assert resting([until(0)], [until(-5)], NOW) is None


def test_another_credential_is_asked_for_failures_of_the_account_alone() -> None:
    three = ["a", "b", "c"]
    assert other_credential(R.AUTH, three, {"a"}, 0, {}, NOW) == "b"
    assert other_credential(R.SERVER_ERROR, three, {"a"}, 0, {}, NOW) is None
    assert other_credential(R.RATE_LIMIT, three, {"a", "b"}, 0, {}, NOW) is None


def test_no_other_credential_that_rests() -> None:
    assert other_credential(R.BILLING, ["a", "b"], {"a"}, 0, {"b": until(60)}, NOW) is None


def test_a_candidate_rests_as_long_as_its_model_and_its_provider_do() -> None:
    assert resting([until(10, Scope.MODEL), until(40, Scope.PROVIDER)], [None], NOW) == until(40, Scope.PROVIDER)


def test_one_credential_awake_is_enough() -> None:
    assert resting([None], [until(60), None], NOW) is None
    assert resting([None], [until(60), until(20)], NOW) == until(20)
    assert resting([until(30, Scope.MODEL)], [until(60), until(20)], NOW) == until(30, Scope.MODEL)
