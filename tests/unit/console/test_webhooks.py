"""Webhooks in words, and the form that describes one."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_client import webhook_views
from spawnmesh_console.domain.webhooks import (
    DELIVERY_STATES,
    EVENT_TYPES,
    TEST_TYPE,
    SentWebhook,
    WrongWebhook,
    answer_words,
    delivery_state,
    outcome_without_attempts,
    replay_notice,
    time_kept,
    webhook_state,
)
from spawnmesh_console.web.failures import refusal_words

SENT = SentWebhook("billing", "https://hooks.example.com/in", ("run.ended", "budget.reached"), "2.5")


def test_the_console_knows_all_types_and_states() -> None:
    assert {*EVENT_TYPES} == {*webhook_views.EVENT_TYPES}
    assert TEST_TYPE == webhook_views.TEST_EVENT_TYPE
    assert {*DELIVERY_STATES} == {*webhook_views.WebhookDeliveryState} - {"UNKNOWN"}


def test_each_state_of_a_webhook_has_a_word_and_a_shape_of_its_own() -> None:
    states = [
        webhook_state(is_paused=False, pause_reason="", is_failing=False),
        webhook_state(is_paused=False, pause_reason="", is_failing=True),
        webhook_state(is_paused=True, pause_reason="", is_failing=True),
        webhook_state(is_paused=True, pause_reason="it is gone", is_failing=True),
    ]
    assert [one.word for one in states] == ["sending", "failing", "paused", "paused by the mesh"]
    assert len({one.icon for one in states}) == len(states)


def test_each_state_of_a_message_has_a_shape_of_its_own() -> None:
    shown = [delivery_state(one) for one in (*DELIVERY_STATES, "UNKNOWN")]
    assert [one.word for one in shown] == ["pending", "delivered", "failed", "unknown"]
    assert len({one.icon for one in shown}) == len(shown)


@pytest.mark.parametrize(
    ("status_code", "error", "words"),
    [
        (204, "", "204"),
        (503, "HTTP status 503", "HTTP status 503"),
        (200, "the answer has more than 65536 bytes", "200: the answer has more than 65536 bytes"),
        (0, "no answer within 15 s", "no answer within 15 s"),
        (0, "", "no answer"),
    ],
)
def test_an_answer_is_a_status_and_a_cause(status_code: int, error: str, words: str) -> None:
    assert answer_words(status_code, error) == words


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 15), (" 1 ", 1), ("30", 30), ("2.5", 2.5), ("7 s", 7), ("29.999", 29.999)]
)
def test_a_time_out_is_written_in_seconds(text: str, seconds: float) -> None:
    assert replace(SENT, timeout=text).time == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["0", "0.9", "30.1", "31", "-1", "1e1", "nan", "inf", "1_0", "٣", "soon"])
def test_another_time_out_is_refused(text: str) -> None:
    with pytest.raises(WrongWebhook, match="from 1 to 30"):
        replace(SENT, timeout=text).check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "-a"},
        {"name": "A"},
        {"name": "a_b"},
        {"name": "a\n"},
        {"name": "a" * 64},
        {"url": ""},
        {"url": "javascript:alert(1)"},
        {"url": " https://hooks.example.com"},
        {"url": "https://"},
        {"url": "https://[::1"},
        {"url": "https://hooks.example.com/" + "ä" * 250},
        {"url": "https://hooks.example.com/" + "\ud800" * 250},
        {"event_types": ("run.ended", "no.type")},
        {"event_types": (TEST_TYPE,)},
    ],
)
def test_what_no_webhook_can_have_is_refused(wrong: dict[str, str]) -> None:
    SENT.check()
    with pytest.raises(WrongWebhook):
        replace(SENT, **wrong).check()


def test_the_fields_of_a_webhook_stand_for_it() -> None:
    shown = SentWebhook.for_webhook(SENT.name, SENT.url, SENT.event_types, timedelta(seconds=2.5))
    assert shown == SENT
    assert SentWebhook.for_webhook("a", "https://a", (), None).timeout == "15"


def test_only_what_differs_is_changed() -> None:
    assert SENT.differs_from(SENT) == frozenset()
    assert replace(SENT, event_types=SENT.event_types[::-1], timeout="2.50").differs_from(SENT) == frozenset()
    assert replace(SENT, event_types=()).differs_from(SENT) == {"event_types"}
    other = replace(SENT, url="https://hooks.example.com/2", timeout="")
    assert other.differs_from(SENT) == {"url", "timeout"}


def test_the_previous_secret_is_kept_as_the_form_says() -> None:
    assert (time_kept("day"), time_kept("none")) == (timedelta(days=1), timedelta())
    for word in ("", "None", "week"):
        with pytest.raises(WrongWebhook, match="signs for another day"):
            time_kept(word)


def test_a_message_that_was_never_sent_is_pending_or_given_up() -> None:
    assert outcome_without_attempts("PENDING") == ""
    assert outcome_without_attempts("FAILED") == "given up: the webhook failed for a day"


def test_a_replay_is_counted() -> None:
    assert replay_notice(0) == "There was nothing to send again."
    assert replay_notice(1) == "One message is sent again."
    assert replay_notice(1200) == "1,200 messages are sent again."


def test_a_refusal_names_each_field_once() -> None:
    assert refusal_words("the request is invalid", ["must be https", ""]) == (
        "the request is invalid; must be https"
    )
    assert refusal_words("the endpoint must be https", ["must be https"]) == "the endpoint must be https"
