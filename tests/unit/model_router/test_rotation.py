"""The rotation of credentials, and the cooldown that blocks a candidate."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.cooldown import Cooldown, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason as R
from spawnmesh_model_router.domain.rotation import blocking_cooldown, other_credential, pick_credential

NOW = datetime(2025, 5, 1, tzinfo=UTC)
names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
uses = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100))


def until(seconds: int, scope: Scope = Scope.CREDENTIAL) -> Cooldown:
    return Cooldown(scope, NOW + timedelta(seconds=seconds), 1, R.AUTH, NOW)


@given(names, uses)
def test_each_credential_has_its_turn_once_in_a_round(credentials: list[str], before: dict[str, int]) -> None:
    last_uses, round_ = dict(before), []
    for turn in range(len(credentials)):
        picked = str(pick_credential(credentials, last_uses, {}, NOW))
        last_uses[picked] = 1000 + turn
        round_.append(picked)
    assert sorted(round_) == sorted(credentials)


def test_the_least_recently_used_credential_is_picked() -> None:
    last_uses = {"a": 4, "b": 6, "c": 5}
    assert pick_credential(["a", "b", "c"], last_uses, {}, NOW) == "a"
    assert pick_credential(["a", "b", "c"], last_uses, {"a": until(60)}, NOW) == "c"
    assert other_credential(R.AUTH, ["a", "b", "c"], {"a"}, last_uses, {}, NOW) == "c"
    assert pick_credential(["a", "new"], last_uses, {}, NOW) == "new"


@given(names, uses, st.sets(st.sampled_from("abcdef")))
def test_a_resting_credential_is_only_picked_when_all_rest(
    credentials: list[str], last_uses: dict[str, int], tired: set[str]
) -> None:
    picked = pick_credential(credentials, last_uses, {name: until(60) for name in tired}, NOW)
    assert picked in credentials
    assert (picked in tired) == (set(credentials) <= tired)


def test_when_all_rest_the_first_to_wake_is_picked() -> None:
    assert pick_credential(["a", "b", "c"], {}, {"a": until(30), "b": until(10), "c": until(20)}, NOW) == "b"
    assert pick_credential([], {}, {}, NOW) is None


def test_a_rest_that_is_over_counts_for_nothing() -> None:
    assert pick_credential(["a"], {}, {"a": until(-1)}, NOW) == "a"
    assert blocking_cooldown([until(0)], [until(-5)], NOW) is None


def test_another_credential_is_asked_for_failures_of_the_account_alone() -> None:
    three = ["a", "b", "c"]
    assert other_credential(R.AUTH, three, {"a"}, {}, {}, NOW) == "b"
    assert other_credential(R.SERVER_ERROR, three, {"a"}, {}, {}, NOW) is None
    assert other_credential(R.RATE_LIMIT, three, {"a", "b"}, {}, {}, NOW) == "c"
    assert other_credential(R.RATE_LIMIT, three, {"a", "b", "c"}, {}, {}, NOW) is None


def test_no_other_credential_that_rests() -> None:
    assert other_credential(R.BILLING, ["a", "b"], {"a"}, {}, {"b": until(60)}, NOW) is None


def test_a_candidate_rests_as_long_as_its_model_and_its_provider_do() -> None:
    assert blocking_cooldown([until(10, Scope.MODEL), until(40, Scope.PROVIDER)], [None], NOW) == until(
        40, Scope.PROVIDER
    )


def test_one_credential_awake_is_enough() -> None:
    assert blocking_cooldown([None], [until(60), None], NOW) is None
    assert blocking_cooldown([None], [until(60), until(20)], NOW) == until(20)
    assert blocking_cooldown([until(30, Scope.MODEL)], [until(60), until(20)], NOW) == until(30, Scope.MODEL)
