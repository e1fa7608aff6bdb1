"""Filters of lists: their text, and what the fields of a session mean in them."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.filters import (
    MAX_COMPARISONS,
    PRESENT,
    Comparison,
    Operator,
    parse_filter,
)
from spawnmesh_session.domain.runs import RunState
from spawnmesh_session.domain.session_filters import SessionFilter, TextMatch, TimeRange, filter_of
from spawnmesh_session.domain.sessions import SessionState

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("AND", "OR", "NOT")
)
comparisons = st.builds(Comparison, names, texts, st.sampled_from(Operator), texts) | st.builds(
    Comparison, names, texts, st.just(Operator.HAS), st.just(PRESENT), st.just(True)
)
words = st.sampled_from(
    [
        "state",
        "=",
        "!=",
        "<=",
        ":",
        "*",
        " ",
        "AND",
        "OR",
        "NOT",
        "-",
        "(",
        ")",
        '"',
        "\\",
        ".",
        "a",
        "\0",
        "'",
    ]
)


def printed(comparisons: tuple[Comparison, ...]) -> str:
    """Return a text that `parse_filter` reads as these comparisons."""
    return " AND ".join(map(printed_comparison, comparisons))


def printed_comparison(comparison: Comparison) -> str:
    is_word = re.fullmatch(r"[A-Za-z0-9_.-]+", comparison.key)
    key = comparison.key if is_word else quoted(comparison.key)
    field = f"{comparison.field}.{key}" if comparison.key else comparison.field
    value = PRESENT if comparison.is_presence else quoted(comparison.value)
    return f"{field} {comparison.operator} {value}"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(st.lists(comparisons, max_size=MAX_COMPARISONS).map(tuple))
@example((Comparison("f", "", Operator.HAS, PRESENT),))
@example((Comparison("f", 'a"b\\', Operator.EQUAL, "it's \\"),))
def test_what_is_printed_is_read_as_the_same_filter(filter_: tuple[Comparison, ...]) -> None:
    assert parse_filter(printed(filter_)) == filter_


@given(st.text(max_size=60) | st.lists(words, max_size=25).map("".join))
@example("a=\\")
@example("a.")
@example("state = ACTIVE AND")
def test_any_text_is_a_filter_or_is_refused_at_a_position_of_it(text: str) -> None:
    if (description := refusal_of(text)) is not None:
        position = int(description.removeprefix("at character ").partition(":")[0])
        assert 1 <= position <= len(text) + 1


def refusal_of(text: str) -> str | None:
    """Return the description of the error at the field `filter`; None if the filter is accepted."""
    try:
        filter_of(parse_filter(text))
    except MeshError as error:
        found = [(error.reason, violation.field) for violation in error.violations]
        return error.violations[0].description if found == [(Reason.INVALID_REQUEST, "filter")] else ""
    return None


REFUSED = {
    "OR": ("state = ACTIVE OR state = CLOSED", "at character 16: OR is not supported"),
    "NOT": ("NOT state = ACTIVE", "at character 1: NOT is not supported; != is"),
    "minus": ("-state = ACTIVE", "at character 1: NOT is not supported"),
    "parentheses": ("(state = ACTIVE)", "at character 1: parentheses are not supported"),
    "a function": ("state(ACTIVE)", "at character 6: expected one of = != < <= > >= :"),
    "a word alone": ("ACTIVE", "at character 7: expected one of"),
    "lower case": ("state = ACTIVE and label = a", "at character 16: expected AND, in capitals"),
    "no AND": ("state = ACTIVE label = a", "at character 16: expected AND"),
    "nothing after AND": ("state = ACTIVE AND ", "at character 20: a comparison must follow AND"),
    "AND alone": ("AND", "at character 1: expected the name of a field"),
    "no value": ("state =", "at character 8: expected a value after ="),
    "no end": ('label = "a', "at character 9: the string has no end"),
    "an escape": ('label = "a\\n"', "at character 11: a backslash stands before"),
    "NUL": ('label = "a\0"', "at character 11: must not contain NUL"),
    "an unknown field": ("colour = red", "at character 1: there is no field colour; the fields are state,"),
    "a key": ("label.a = b", "at character 1: label has no keys"),
    "an unknown state": ("state = OPEN", "PROVISIONING, ACTIVE, CLOSED, SPAWN_FAILED; not 'OPEN'"),
    "a state of runs": ("state = RUN_STATE_FAILED", "not 'RUN_STATE_FAILED'"),
    "an order of states": ("state < CLOSED", "state is compared by =, != and :*"),
    "an order of texts": ("label >= a", "label is compared by =, != and :*"),
    "a part of a text": ("label:a", "label is compared by =, != and :*"),
    "the text of an asterisk": ('label:"*"', "label is compared by =, != and :*"),
    "other times": ("end_time != 2026-01-31T12:00:00Z", "end_time is compared by =, <, <=, >, >= and :*"),
    "a date": ("create_time > 2026-01-31", "a time as in RFC 3339"),
    "no time zone": ("create_time > 2026-01-31T12:00:00", "a time as in RFC 3339"),
    "nanoseconds": ("create_time > 2026-01-31T12:00:00.000000001Z", "at most six digits"),
    "a day that is none": ("create_time > 2026-02-30T12:00:00Z", "a time as in RFC 3339"),
    "after the last time": ("create_time > 9999-12-31T23:59:59.999999Z", "a time as in RFC 3339"),
    "before the first time": ("create_time > 0001-01-01T00:00:00+01:00", "a time as in RFC 3339"),
    "no session id": ("parent_session_id = run_1", "compared with the id of a session"),
    "no reason": ("failure_reason = BECAUSE", "as RUN_TIMEOUT; 'BECAUSE' is none"),
    "metadata without a key": ("metadata = 1", "metadata is compared by a key"),
    "a key that no metadata has": ("metadata.Ticket = 1", "metadata is compared by a key"),
    "an order of metadata": ("metadata.ticket > 1", "metadata.ticket is compared by =, != and :*"),
    "too many": (" AND ".join(["label:*"] * (MAX_COMPARISONS + 1)), "a filter has at most 32 comparisons"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_filter_that_has_no_meaning_is_refused_with_what_is_allowed(name: str) -> None:
    text, description = REFUSED[name]
    assert description in (refusal_of(text) or "")


ACCEPTED = {
    "": SessionFilter(),
    " \t\n": SessionFilter(),
    "state=ACTIVE": SessionFilter(states=frozenset({SessionState.ACTIVE})),
    "state = SESSION_STATE_ACTIVE": SessionFilter(states=frozenset({SessionState.ACTIVE})),
    "state != CLOSED AND state!='SPAWN_FAILED'": SessionFilter(
        states=frozenset({SessionState.PROVISIONING, SessionState.ACTIVE})
    ),
    "state = ACTIVE AND state = CLOSED": SessionFilter(states=frozenset()),
    "run_state = TIMED_OUT": SessionFilter(run_states=frozenset({RunState.TIMED_OUT})),
    "run_state:*": SessionFilter(run_states=frozenset(RunState)),
    'label = "a \\"b\\" \\\\"': SessionFilter(label=TextMatch('a "b" \\')),
    "label:* AND label != draft": SessionFilter(label=TextMatch(None, frozenset({"", "draft"}))),
    "label = a AND label = a": SessionFilter(label=TextMatch("a")),
    "label = a AND label = b": SessionFilter(label=TextMatch("b", frozenset("b"))),
    "agent_id = '*'": SessionFilter(agent_id=TextMatch("*")),
    'parent_session_id = ""': SessionFilter(parent_session_id=TextMatch("")),
    "failure_reason = RUN_TIMEOUT": SessionFilter(failure_reason=TextMatch("RUN_TIMEOUT")),
    "create_time >= 2026-01-31T12:00:00Z AND create_time < '2026-01-31t13:00:00+01:00'": SessionFilter(
        create_time=TimeRange(NOON, NOON)
    ),
    "create_time > 2026-01-31T12:00:00Z": SessionFilter(create_time=TimeRange(NOON + TICK)),
    "end_time <= 2026-01-31T12:00:00.000000Z": SessionFilter(
        end_time=TimeRange(end=NOON + TICK), is_ended=True
    ),
    "end_time = 2026-01-31T12:00:00Z": SessionFilter(end_time=TimeRange(NOON, NOON + TICK), is_ended=True),
    "end_time:*": SessionFilter(is_ended=True),
    "create_time:*": SessionFilter(),
    'metadata.ticket = 17 AND metadata."a.b":*': SessionFilter(
        metadata=frozenset({("ticket", "17")}), metadata_keys=frozenset({"ticket", "a.b"})
    ),
    "metadata.a.b != 'x y'": SessionFilter(
        metadata_keys=frozenset({"a.b"}), other_metadata=frozenset({("a.b", "x y")})
    ),
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_filter_means_the_sessions_that_fulfil_all_comparisons(text: str) -> None:
    assert filter_of(parse_filter(text)) == ACCEPTED[text]


EMPTY = (
    "state = ACTIVE AND state = CLOSED",
    "label = a AND label = b",
    "label = a AND label != a",
    'label:* AND label = ""',
    "metadata.a = 1 AND metadata.a = 2",
    "metadata.a = 1 AND metadata.a != 1",
    "end_time < 2026-01-31T12:00:00Z AND end_time >= 2026-01-31T12:00:00Z",
)


def test_comparisons_that_contradict_each_other_leave_nothing() -> None:
    assert [text for text in EMPTY if not filter_of(parse_filter(text)).is_empty] == []
    accepted = [text for text, found in ACCEPTED.items() if found.is_empty]
    assert accepted == [
        "state = ACTIVE AND state = CLOSED",
        "label = a AND label = b",
        "create_time >= 2026-01-31T12:00:00Z AND create_time < '2026-01-31t13:00:00+01:00'",
    ]
