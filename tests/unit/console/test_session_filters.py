"""The filter that the form of the sessions stands for, as the session service reads it."""

from urllib.parse import parse_qs, urlencode

from hypothesis import example, given
from hypothesis import strategies as st
from spawnmesh_console.domain.session_filters import ChosenFilter
from spawnmesh_console.domain.states import run_state
from spawnmesh_session.domain.filters import Comparison, Operator, parse_filter
from spawnmesh_session.domain.runs import RunState
from spawnmesh_session.domain.session_filters import filter_of

typed = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


def equal(field: str, value: str) -> tuple[Comparison, ...]:
    return (Comparison(field, "", Operator.EQUAL, value),) if value else ()


@given(typed, typed, typed, typed)
@example('x" OR "1', "\\", '\\"', 'a" AND state = "ACTIVE')
@example("*", "'", '"', "\\\\")
def test_each_field_is_one_comparison_with_the_typed_text(
    state: str, agent: str, label: str, reason: str
) -> None:
    chosen = ChosenFilter(state=state, agent=agent, label=label, reason=reason)
    assert parse_filter(chosen.text()) == (
        *equal("run_state", state),
        *equal("agent_id", agent),
        *equal("label", label),
        *equal("failure_reason", reason),
    )
    assert chosen.is_empty == (chosen.text() == "")


@given(typed)
def test_an_expression_is_joined_to_the_fields(label: str) -> None:
    expression = 'metadata.ticket = "17" AND agent_id != clerk'
    chosen = ChosenFilter(label=label, since="2026-01-31T00:00:00Z", expression=expression)
    since = Comparison("create_time", "", Operator.GREATER, "2026-01-31T00:00:00Z")
    assert parse_filter(chosen.text()) == (*equal("label", label), since, *parse_filter(expression))


@given(typed, typed)
def test_the_address_stands_for_the_choice(label: str, expression: str) -> None:
    chosen = ChosenFilter(label=label, expression=expression)
    read = {name: values[0] for name, values in parse_qs(urlencode(chosen.query())).items()}
    assert ChosenFilter(**read) == chosen


def test_each_state_to_choose_is_one_of_runs_and_has_words() -> None:
    for state in ChosenFilter().states:
        assert filter_of(parse_filter(ChosenFilter(state=state).text())).run_states == {RunState(state)}
    for state in RunState:
        assert run_state(state.value).word != "unknown"
    assert {*ChosenFilter().states} == {state.value for state in RunState}
    offered = {run_state(state).word for state in ChosenFilter().states}
    assert len(offered) == len(ChosenFilter().states)
