"""Failed calls in memory: sums with a bound, and the hours that are kept."""

from datetime import UTC, datetime, timedelta

from spawnmesh_model_router.domain.answer import Usage
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.events import Attempt
from spawnmesh_model_router.domain.failures import (
    AfterFailure,
    FailureCounts,
    FailureKey,
    HourSpan,
    first_kept_hour,
)
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.spend import Spend, SpendKey
from spawnmesh_model_router.domain.usage_sums import UsageSums, one_spend

NOW = datetime(2026, 3, 1, 12, 34, 56, 789, tzinfo=UTC)
HOUR = timedelta(hours=1)
THIS_HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)


def one_failure(model: str, after: AfterFailure = AfterFailure.ENDED) -> UsageSums:
    attempt = Attempt(1, ModelRef("p", model), NOW - HOUR, NOW, FailoverReason.TIMEOUT)
    return UsageSums(failures={FailureKey.of(attempt): FailureCounts.of(after)})


def one_charge(model: str) -> UsageSums:
    charged = ChargedUsage(Usage(1, 2, 0, 0), 3)
    return one_spend(SpendKey(NOW.date(), "ann", f"p/{model}"), Spend(1, charged))


def test_failure_counts_in_the_hour_of_its_end_and_by_what_followed() -> None:
    sums = UsageSums()
    for after in (AfterFailure.REPEATED, AfterFailure.FAILED_OVER, AfterFailure.ENDED, AfterFailure.ENDED):
        assert sums.add(one_failure("one", after), capacity=5) == 0
    key = FailureKey(THIS_HOUR, "p/one", "TIMEOUT")
    assert sums.failures == {key: FailureCounts(failures=4, failovers=1, ends=2)}


def test_sums_beyond_the_capacity_are_left_out_and_known_ones_still_grow() -> None:
    sums = UsageSums()
    assert sums.add(one_failure("one"), capacity=1) == 0
    assert sums.add(one_failure("one"), capacity=0) == 0
    assert sums.add(one_failure("two"), capacity=0) == 1
    assert sums.add(one_charge("one"), capacity=0) == 1
    assert sums.add(one_charge("one"), capacity=1) == 0
    assert sums.add(one_charge("one"), capacity=0) == 0
    assert len(sums) == 2
    assert [one.failures for one in sums.failures.values()] == [2]
    assert [one.call_count for one in sums.spend.sums.values()] == [2]


def test_capacity_is_for_all_that_is_added() -> None:
    more = UsageSums()
    for model in ("one", "two", "three"):
        more.add(one_failure(model), capacity=9)
        more.add(one_charge(model), capacity=9)
    sums = UsageSums()
    assert sums.add(more, capacity=4) == 2
    assert len(sums) == 4


def test_span_has_whole_hours_that_are_kept() -> None:
    assert HourSpan.of(None, None, NOW) == HourSpan(THIS_HOUR - 23 * HOUR, THIS_HOUR)
    assert first_kept_hour(NOW) == THIS_HOUR - 167 * HOUR
    oldest = HourSpan.of(NOW - 168 * HOUR, None, NOW)
    assert oldest == HourSpan(THIS_HOUR - 167 * HOUR, THIS_HOUR)
    none = HourSpan.of(NOW, NOW, NOW)
    assert none.last < none.first
