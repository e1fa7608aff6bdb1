"""The limits of a budget as people write them, and amounts as they are shown."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.budget_limits import (
    LimitAmounts,
    LimitTexts,
    WrongLimit,
    money,
    short_money,
    span_text,
)

LIMITS = st.builds(
    LimitAmounts,
    st.integers(0, 10**17),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 365 * 86_400 * 10**6).map(lambda micros: timedelta(microseconds=micros)),
)


@given(LIMITS)
def test_a_form_that_is_sent_as_it_was_shown_has_the_same_limits(limits: LimitAmounts) -> None:
    texts = LimitTexts.for_limits(limits)
    assert texts.limits() == limits
    sent = {f"limit_{name}": text for name, text in texts.texts().items()}
    assert LimitTexts.of(sent) == texts
    assert limits.changed_fields(texts.limits()) == ()


@pytest.mark.parametrize(
    ("field", "text", "limits"),
    [
        ("limit_cost", " 0.5 ", LimitAmounts(cost_micros=500_000)),
        ("limit_cost", "12", LimitAmounts(cost_micros=12_000_000)),
        ("limit_cost", "0.000001", LimitAmounts(cost_micros=1)),
        ("limit_tokens", "200,000", LimitAmounts(token_count=200_000)),
        ("limit_tokens", "200 000", LimitAmounts(token_count=200_000)),
        ("limit_calls", "40", LimitAmounts(model_call_count=40)),
        ("limit_time", "10m", LimitAmounts(run_time=timedelta(minutes=10))),
        ("limit_time", "1h 30m", LimitAmounts(run_time=timedelta(minutes=90))),
        ("limit_time", "1d", LimitAmounts(run_time=timedelta(days=1))),
        ("limit_time", "1.5s", LimitAmounts(run_time=timedelta(seconds=1.5))),
        ("limit_time", "", LimitAmounts()),
        ("limit_time", 3, LimitAmounts()),
    ],
)
def test_each_notation_of_a_limit_is_read(field: str, text: object, limits: LimitAmounts) -> None:
    assert LimitTexts.of({field: text}).limits() == limits
    assert bool(limits) == (limits != LimitAmounts())


@pytest.mark.parametrize(
    ("field", "text", "word"),
    [
        ("limit_cost", "-1", "cost"),
        ("limit_cost", "1e3", "cost"),
        ("limit_cost", "nan", "cost"),
        ("limit_cost", "0.0000001", "cost"),
        ("limit_cost", "1" * 13, "cost"),
        ("limit_cost", "٣", "cost"),
        ("limit_tokens", "1.5", "tokens"),
        ("limit_tokens", "9" * 19, "tokens"),
        ("limit_tokens", "9" * 5000, "tokens"),
        ("limit_calls", "many", "model calls"),
        ("limit_time", "10", "run time"),
        ("limit_time", "10m10h", "run time"),
        ("limit_time", "٣m", "run time"),
        ("limit_time", "366d", "365 days"),
        ("limit_time", "9" * 39 + "d", "365 days"),
    ],
)
def test_a_text_that_is_no_limit_is_refused_with_its_name(field: str, text: str, word: str) -> None:
    with pytest.raises(WrongLimit, match=word):
        LimitTexts.of({field: text}).limits()


def test_only_limits_that_differ_are_changed() -> None:
    before = LimitAmounts(500_000, 1000, 0, timedelta(minutes=10))
    assert LimitAmounts(500_000, 2000, 5, timedelta(minutes=10)).changed_fields(before) == (
        "max_token_count",
        "max_model_call_count",
    )
    assert LimitAmounts().changed_fields(before) == ("max_cost_micros", "max_token_count", "max_run_time")


@pytest.mark.parametrize(
    ("micros", "exact", "short"),
    [
        (0, "0.00", "0.00"),
        (1, "0.000001", "0.000001"),
        (520_000, "0.52", "0.52"),
        (523_417, "0.523417", "0.5234"),
        (999_999, "0.999999", "0.9999"),
        (1_000_000, "1.00", "1.00"),
        (12_345_678, "12.345678", "12.34"),
        (1_234_567_890_000, "1,234,567.89", "1,234,567.89"),
    ],
)
def test_an_amount_is_shown_as_a_decimal_number(micros: int, exact: str, short: str) -> None:
    assert (money(micros), short_money(micros)) == (exact, short)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(minutes=10), "10m"),
        (timedelta(hours=1, minutes=30), "1h30m"),
        (timedelta(hours=30, seconds=5), "30h5s"),
        (timedelta(milliseconds=1500), "1.5s"),
    ],
)
def test_a_span_of_time_is_written_with_its_units(span: timedelta, text: str) -> None:
    assert span_text(span) == text
