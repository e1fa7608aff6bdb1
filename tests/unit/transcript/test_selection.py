"""The newest that fits is read, calls with their results, the newest user message in any case."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_transcript.domain.selection import Selection, group_token_count, select
from spawnmesh_transcript.domain.turns import Group, MissingResult, Role, Turn

_MISSING = 7


def _user(seq: int, tokens: int) -> Group:
    return Group(Turn(seq, Role.USER, tokens))


def _said(seq: int, tokens: int) -> Group:
    return Group(Turn(seq, Role.ASSISTANT, tokens))


def _select(groups: list[Group], budget: int, always: Turn | None = None) -> Selection:
    return select(groups, token_budget=budget, always=always, missing_result_token_count=_MISSING)


def _seqs(selection: Selection) -> list[int]:
    return [group.head.seq for group in selection.groups]


def test_the_newest_that_fit_are_chosen_oldest_first() -> None:
    selection = _select([_said(1, 10), _said(2, 10), _said(3, 10)], 25)
    assert _seqs(selection) == [2, 3]
    assert selection.is_full


def test_nothing_is_skipped_to_reach_something_smaller() -> None:
    assert _seqs(_select([_said(1, 1), _said(2, 100), _said(3, 10)], 50)) == [3]


def test_a_call_counts_with_its_results_also_missing_ones() -> None:
    group = Group(
        Turn(1, Role.ASSISTANT, 10, ("a", "b")), (Turn(2, Role.TOOL_RESULT, 5, answers="a"), MissingResult("b"))
    )
    assert group_token_count(group, missing_result_token_count=_MISSING) == 22
    assert _seqs(_select([group], 21)) == []
    assert _seqs(_select([group], 22)) == [1]


def test_the_newest_user_message_is_in_alone_over_the_budget() -> None:
    groups = [_said(1, 1), _user(2, 1000), _said(3, 1)]
    assert _seqs(_select(groups, 10, groups[1].head)) == [2]


def test_the_newest_user_message_is_in_behind_what_does_not_fit_and_below_the_scan() -> None:
    groups = [_user(1, 5), _said(2, 50), _said(3, 10)]
    assert _seqs(_select(groups, 20, groups[0].head)) == [1, 3]
    assert _seqs(_select(groups[1:], 20, groups[0].head)) == [1, 3]


def test_nothing_between_what_does_not_fit_and_the_user_message_is_chosen() -> None:
    groups = [_user(1, 5), _said(2, 1), _said(3, 50), _said(4, 10)]
    assert _seqs(_select(groups, 20, groups[0].head)) == [1, 4]


def test_its_tokens_are_taken_before_the_rest() -> None:
    groups = [_user(1, 15), _said(2, 10), _said(3, 10)]
    assert _seqs(_select(groups, 30, groups[0].head)) == [1, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=20), st.integers(1, 200))
def test_the_budget_holds_unless_the_user_message_alone_breaks_it(
    described: list[tuple[bool, int]], budget: int
) -> None:
    groups = [_user(seq, tokens) if is_user else _said(seq, tokens) for seq, (is_user, tokens) in enumerate(described)]
    always = next((group.head for group in reversed(groups) if group.head.role is Role.USER), None)
    selection = _select(groups, budget, always)
    total = sum(group.head.token_count for group in selection.groups)
    assert total <= max(budget, always.token_count if always else 0)
    assert always is None or always.seq in _seqs(selection)
    assert selection.is_full == (len(selection.groups) < len(groups))
    assert _seqs(selection) == sorted(_seqs(selection))
