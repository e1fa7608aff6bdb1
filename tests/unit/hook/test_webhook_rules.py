"""The rules of webhooks: pauses, secrets, etags, types and limits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.webhooks import (
    FAILS,
    FAILURES_TO_PAUSE,
    GONE,
    LONGEST_FAILURE,
    MAX_WEBHOOK_COUNT,
    TYPE_OF_HOOK,
    DeliveryState,
    Webhook,
    WebhookAttempt,
    WebhookDelivery,
    WebhookMessage,
    WebhookType,
    begin_of_day,
    check_webhook_count,
    check_webhook_etag,
    event_id_of,
    expired_before,
    in_fixed_order,
    pause_after,
    pause_reason,
    retry_pause,
    rotated,
)

NOW = datetime(2026, 11, 30, 3, tzinfo=UTC)
WEBHOOK = Webhook("w", "https://host/", (), timedelta(seconds=15), webhook_id="whk_1", generation=1)
FAILED = WebhookAttempt(NOW, timedelta(seconds=1), 500, "HTTP status 500")
PAUSES = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 14400, 14400, 14400, 14400)
LONGEST, DAY = timedelta(hours=4), timedelta(days=1)
MESSAGE = WebhookMessage("evt_1", WebhookType.RUN_ENDED, "ses_1", "run_1", NOW, "{}")
DELIVERY = WebhookDelivery(MESSAGE, DeliveryState.PENDING, NOW, NOW, None, 1, 0, 0, ())
JITTERS = st.floats(min_value=0, max_value=1, exclude_max=True)
COUNTS = st.integers(min_value=1, max_value=2 * len(PAUSES))
ASKED = st.none() | st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=7))


def usual(count: int) -> timedelta:
    return timedelta(seconds=PAUSES[min(count, len(PAUSES)) - 1])


def test_the_attempts_of_a_message_take_a_day() -> None:
    pauses, attempt = list[timedelta](), FAILED
    while (pause := pause_after(len(pauses) + 1, attempt, NOW, 0.0)) is not None:
        pauses.append(pause)
        attempt = replace(attempt, start_time=attempt.start_time + pause)
    assert pauses == [timedelta(seconds=seconds) for seconds in PAUSES]
    assert timedelta(hours=23) < sum(pauses, timedelta(0)) < DAY


@given(COUNTS, JITTERS, ASKED, st.timedeltas(min_value=timedelta(0), max_value=2 * DAY))
def test_no_attempt_follows_after_the_day(
    count: int, jitter: float, asked: timedelta | None, passed: timedelta
) -> None:
    attempt = replace(FAILED, start_time=NOW + passed, retry_after=asked)
    pause = pause_after(count, attempt, NOW, jitter)
    fresh = pause_after(count, attempt, attempt.start_time, jitter)
    assert fresh is not None
    assert pause == (fresh if passed + fresh < DAY else None)


@given(COUNTS, JITTERS)
def test_a_pause_is_up_to_a_tenth_longer(count: int, jitter: float) -> None:
    pause = pause_after(count, FAILED, NOW, jitter)
    assert pause is not None
    assert usual(count) <= pause <= usual(count) * 1.1


@given(JITTERS, ASKED)
def test_pauses_grow_whatever_the_receiver_asks_for(jitter: float, asked: timedelta | None) -> None:
    attempt = replace(FAILED, retry_after=asked)
    pauses = [pause_after(number, attempt, NOW, jitter) for number in range(1, len(PAUSES) + 1)]
    for pause, following in pairwise(pauses):
        assert pause is not None
        assert following is not None
        assert pause <= following


@given(COUNTS, JITTERS, st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=7)))
def test_a_longer_pause_that_was_asked_for_is_respected_up_to_the_longest(
    count: int, jitter: float, asked: timedelta
) -> None:
    unasked = pause_after(count, FAILED, NOW, jitter)
    pause = pause_after(count, replace(FAILED, retry_after=asked), NOW, jitter)
    assert unasked is not None
    assert pause == max(unasked, min(asked, LONGEST))


def test_the_day_of_a_message_begins_when_it_is_queued_or_its_webhook_resumed() -> None:
    assert begin_of_day(WEBHOOK, DELIVERY) == NOW
    for shift in (-DAY, DAY):
        resumed = replace(WEBHOOK, resume_time=NOW + shift)
        assert begin_of_day(resumed, DELIVERY) == max(NOW, NOW + shift)
    assert expired_before(NOW) == NOW - DAY


def test_the_pauses_of_a_webhook_that_fails() -> None:
    pauses = [retry_pause(count).total_seconds() for count in range(1, 9)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert retry_pause(10**9) == timedelta(minutes=5)


def test_the_reasons_of_a_pause() -> None:
    assert pause_reason(WEBHOOK, FAILED) == ""
    assert pause_reason(WEBHOOK, replace(FAILED, status_code=410)) == GONE
    failing = replace(WEBHOOK, failing_since=NOW - LONGEST_FAILURE, failure_count=FAILURES_TO_PAUSE)
    assert pause_reason(failing, FAILED) == FAILS
    assert pause_reason(replace(failing, failure_count=FAILURES_TO_PAUSE - 1), FAILED) == ""
    assert pause_reason(failing, replace(FAILED, start_time=NOW - timedelta(microseconds=1))) == ""
    assert pause_reason(failing, replace(FAILED, status_code=410)) == GONE


def test_the_secrets_that_sign() -> None:
    assert WEBHOOK.secret_numbers(NOW) == (1,)
    first = rotated(WEBHOOK, "r1", timedelta(hours=1), NOW)
    assert first.secret_numbers(NOW) == (2, 1)
    assert first.secret_numbers(NOW + timedelta(minutes=59)) == (2, 1)
    assert first.secret_numbers(NOW + timedelta(hours=1)) == (2,)
    assert rotated(first, "r1", timedelta(0), NOW) is first
    second = rotated(first, "r2", timedelta(hours=1), NOW)
    assert second.secret_numbers(NOW) == (3, 2)
    assert rotated(first, "r2", timedelta(0), NOW).secret_numbers(NOW) == (3,)


@given(
    st.lists(
        st.tuples(st.integers(min_value=0, max_value=7 * 86_400), st.integers(min_value=0, max_value=10**6)),
        max_size=6,
    ),
    st.integers(min_value=0, max_value=10**6),
)
def test_a_message_is_signed_by_the_newest_secret_and_at_most_one_more(
    rotations: list[tuple[int, int]], later: int
) -> None:
    webhook, now, keep = WEBHOOK, NOW, 0
    for number, (keep, passed) in enumerate(rotations):
        now += timedelta(seconds=passed)
        webhook = rotated(webhook, f"r{number}", timedelta(seconds=keep), now)
    numbers = webhook.secret_numbers(now + timedelta(seconds=later))
    newest = len(rotations) + 1
    assert list(numbers) == ([newest, newest - 1] if later < keep else [newest])
    assert all(number >= 1 for number in numbers)


@given(st.text(), st.text(), st.integers(min_value=0), st.integers(min_value=0))
def test_an_etag_identifies_the_life_of_a_name_and_its_generation(
    one: str, other: str, first: int, second: int
) -> None:
    etags = [replace(WEBHOOK, webhook_id=i, generation=g).etag for i, g in ((one, first), (other, second))]
    is_same = (one, first) == (other, second)
    assert (etags[0] == etags[1]) == is_same
    assert all(0 < len(etag) <= 64 for etag in etags)


def test_an_etag_of_another_version_is_refused() -> None:
    check_webhook_etag("webhook.etag", "", WEBHOOK)
    check_webhook_etag("webhook.etag", WEBHOOK.etag, WEBHOOK)
    with pytest.raises(MeshError) as caught:
        check_webhook_etag("webhook.etag", replace(WEBHOOK, generation=2).etag, WEBHOOK)
    assert caught.value.reason is Reason.ETAG_DIFFERS
    assert [one.field for one in caught.value.violations] == ["webhook.etag"]


def test_the_count_of_webhooks() -> None:
    check_webhook_count(MAX_WEBHOOK_COUNT - 1)
    for count in (MAX_WEBHOOK_COUNT, MAX_WEBHOOK_COUNT + 1):
        with pytest.raises(MeshError) as caught:
            check_webhook_count(count)
        assert caught.value.reason is Reason.WEBHOOK_COUNT_EXCEEDED


@given(st.lists(st.sampled_from(WebhookType)))
def test_equal_sets_of_types_are_equal(types: list[WebhookType]) -> None:
    ordered = in_fixed_order(types)
    assert ordered == in_fixed_order(reversed(types))
    assert set(ordered) == set(types)
    assert len(ordered) == len(set(types))


@given(st.sets(st.sampled_from(sorted(TYPE_OF_HOOK.values()))))
def test_a_webhook_wants_the_types_that_it_names_or_all(types: set[WebhookType]) -> None:
    webhook = replace(WEBHOOK, event_types=in_fixed_order(types))
    wanted = types or set(TYPE_OF_HOOK.values())
    assert {one for one in TYPE_OF_HOOK.values() if webhook.wants(one)} == wanted
    assert {TYPE_OF_HOOK[hook] for hook in webhook.hooks} == wanted


def test_nothing_that_a_run_can_publish_is_sent_to_webhooks() -> None:
    content = {HookKind.LLM_INPUT, HookKind.LLM_OUTPUT, HookKind.AFTER_TOOL_CALL}
    assert not content & set(TYPE_OF_HOOK)


def test_the_id_of_an_event_is_that_of_its_key_and_session() -> None:
    ids = {event_id_of(key, session) for key in ("a", "b") for session in ("ses_1", "ses_2")}
    assert len(ids) == 4
    assert event_id_of("a", "ses_1") in ids
    assert all(one.startswith("evt_") for one in ids)
