"""The newest entries that fit are selected, calls with their results, and always the newest user
message."""

from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_transcript.domain.selection import (
    ENTRY_BYTES,
    MAX_CONTEXT_BYTES,
    MIN_SHARE_TOKENS,
    MISSING_RESULT_BYTES,
    Selection,
    Share,
    batches,
    fair_share,
    group_size_bytes,
    group_token_count,
    select,
)
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


def test_selection_stops_at_the_first_that_does_not_fit() -> None:
    assert _seqs(_select([_said(1, 1), _said(2, 100), _said(3, 10)], 50)) == [3]


def test_a_call_counts_with_its_results_and_missing_ones() -> None:
    group = Group(
        Turn(1, Role.ASSISTANT, 10, ("a", "b")),
        (Turn(2, Role.TOOL_RESULT, 5, answers="a"), MissingResult("b")),
    )
    assert group_token_count(group, missing_result_token_count=_MISSING) == 22
    assert _seqs(_select([group], 21)) == []
    assert _seqs(_select([group], 22)) == [1]


def test_the_newest_user_message_is_selected_alone_over_the_budget() -> None:
    groups = [_said(1, 1), _user(2, 1000), _said(3, 1)]
    assert _seqs(_select(groups, 10, groups[1].head)) == [2]


def test_the_newest_user_message_is_selected_behind_entries_that_do_not_fit() -> None:
    groups = [_user(1, 5), _said(2, 50), _said(3, 10)]
    assert _seqs(_select(groups, 20, groups[0].head)) == [1, 3]
    assert _seqs(_select(groups[1:], 20, groups[0].head)) == [1, 3]


def test_nothing_between_the_selection_and_the_user_message_is_selected() -> None:
    groups = [_user(1, 5), _said(2, 1), _said(3, 50), _said(4, 10)]
    assert _seqs(_select(groups, 20, groups[0].head)) == [1, 4]


def test_the_tokens_of_the_user_message_are_reserved_first() -> None:
    groups = [_user(1, 15), _said(2, 10), _said(3, 10)]
    assert _seqs(_select(groups, 30, groups[0].head)) == [1, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=20), st.integers(1, 200))
def test_the_budget_holds_unless_the_user_message_alone_breaks_it(
    described: list[tuple[bool, int]], budget: int
) -> None:
    groups = [
        _user(seq, tokens) if is_user else _said(seq, tokens)
        for seq, (is_user, tokens) in enumerate(described)
    ]
    always = next((group.head for group in reversed(groups) if group.head.role is Role.USER), None)
    selection = _select(groups, budget, always)
    total = sum(group.head.token_count for group in selection.groups)
    assert total <= max(budget, always.token_count if always else 0)
    assert always is None or always.seq in _seqs(selection)
    assert selection.is_full == (len(selection.groups) < len(groups))
    assert _seqs(selection) == sorted(_seqs(selection))


def _sized(seq: int, size_bytes: int) -> Group:
    return Group(Turn(seq, Role.ASSISTANT, 1, size_bytes=size_bytes - ENTRY_BYTES))


def test_an_entry_of_few_tokens_and_many_bytes_does_not_fit() -> None:
    half = MAX_CONTEXT_BYTES // 2
    assert _seqs(_select([_sized(1, 300), _sized(2, half), _sized(3, half)], 10)) == [2, 3]
    assert _seqs(_select([_sized(1, 300), _sized(2, half + 1), _sized(3, half)], 10)) == [3]
    always = _sized(9, MAX_CONTEXT_BYTES + 1).head
    assert _seqs(_select([_sized(1, 300), Group(always)], 10, always)) == [9]


def test_the_other_fields_of_an_answer_count_too() -> None:
    group = Group(Turn(1, Role.ASSISTANT, 1, ("a",), size_bytes=5), (MissingResult("a"),))
    assert group_size_bytes(group) == 5 + ENTRY_BYTES + MISSING_RESULT_BYTES
    empty = [Group(Turn(seq, Role.ASSISTANT, 0)) for seq in range(50_000)]
    assert len(_select(empty, 1).groups) == MAX_CONTEXT_BYTES // ENTRY_BYTES


@st.composite
def _groups(draw: st.DrawFn) -> list[Group]:
    """Generate answers with a result, without a result or without the expected one, and user
    messages."""
    groups: list[Group] = []
    for seq in range(0, 2 * draw(st.integers(0, 14)), 2):
        tokens, size = draw(st.integers(0, 30)), draw(st.sampled_from([0, 10, 900, 5_000]))
        if draw(st.booleans()):
            groups.append(Group(Turn(seq, Role.USER, tokens, size_bytes=size)))
            continue
        turn = Turn(seq, Role.ASSISTANT, tokens, ("c",), size_bytes=size)
        result = Turn(
            seq + 1,
            Role.TOOL_RESULT,
            draw(st.integers(0, 30)),
            (),
            "c",
            size_bytes=draw(st.integers(0, 4_000)),
        )
        groups.append(Group(turn, draw(st.sampled_from([(), (result,), (MissingResult("c"),)]))))
    return groups


@given(_groups(), st.integers(-50, 200), st.integers(0, 20_000), st.booleans())
def test_the_longest_end_that_fits_by_tokens_and_by_bytes_is_chosen(
    groups: list[Group], budget: int, max_bytes: int, has_always: bool
) -> None:
    """Compares to a search that tries each end."""
    newest = [group for group in groups if group.head.role is Role.USER][-1:] if has_always else []
    always = newest[0].head if newest else None

    def with_always(begin: int) -> list[Group]:
        return [*(group for group in newest if groups.index(group) < begin), *groups[begin:]]

    def fits(chosen: list[Group]) -> bool:
        tokens = sum(group_token_count(group, missing_result_token_count=_MISSING) for group in chosen)
        return tokens <= budget and sum(map(group_size_bytes, chosen)) <= max_bytes

    begins = [begin for begin in range(len(groups)) if fits(with_always(begin))]
    expected = with_always(begins[0]) if begins else newest
    selection = select(
        groups, token_budget=budget, always=always, missing_result_token_count=_MISSING, max_bytes=max_bytes
    )
    assert list(selection.groups) == expected
    assert selection.is_full == (len(expected) < len(groups))


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 5), st.integers(1, 30))
def test_bodies_are_read_in_the_largest_batches_allowed(
    sizes: list[int], max_count: int, max_bytes: int
) -> None:
    turns = [Turn(seq, Role.USER, 1, size_bytes=size) for seq, size in enumerate(sizes)]
    found = list(batches(turns, max_count=max_count, max_bytes=max_bytes))
    assert [turn for batch in found for turn in batch] == turns
    for batch, behind in zip_longest(found, found[1:]):
        read_bytes = sum(turn.size_bytes for turn in batch)
        assert len(batch) == 1 or (len(batch) <= max_count and read_bytes <= max_bytes)
        assert not behind or len(batch) == max_count or read_bytes + behind[0].size_bytes > max_bytes


@pytest.mark.parametrize("max_count", [1, 7, 100])
def test_small_bodies_are_read_in_batches_by_number(max_count: int) -> None:
    turns = [Turn(seq, Role.USER, 1, size_bytes=100) for seq in range(100)]
    assert [len(batch) for batch in batches(turns, max_count=max_count)][:-1] == [max_count] * (
        99 // max_count
    )


def _answered(seq: int, *results: tuple[int, int], head_tokens: int = 10) -> Group:
    """Return a call with results of so many tokens and bytes."""
    calls = tuple(f"c{index}" for index in range(len(results)))
    return Group(
        Turn(seq, Role.ASSISTANT, head_tokens, calls),
        tuple(
            Turn(seq + index + 1, Role.TOOL_RESULT, tokens, answers=f"c{index}", size_bytes=size)
            for index, (tokens, size) in enumerate(results)
        ),
    )


def _cut(groups: list[Group], budget: int, max_bytes: int = MAX_CONTEXT_BYTES) -> Selection:
    return select(
        groups,
        token_budget=budget,
        always=None,
        missing_result_token_count=_MISSING,
        max_bytes=max_bytes,
        cut_newest_results=True,
    )


def test_newest_results_that_do_not_fit_share_what_is_left() -> None:
    selection = _cut([_said(1, 1), _answered(2, (5_000, 1), (300, 1), (9_000, 1))], 4_310)
    assert _seqs(selection) == [2]
    assert selection.is_full
    assert selection.cut == {3: Share(2_000, 1), 5: Share(2_000, 1)}


def test_results_are_cut_only_if_they_do_not_fit() -> None:
    groups = [_said(1, 5), _answered(2, (5_000, 1), (300, 1))]
    assert _cut(groups, 5_315) == Selection(tuple(groups), is_full=False)
    assert _cut(groups, 5_314) == Selection((groups[1],), is_full=True)
    assert _cut(groups, 5_309).cut == {3: Share(4_999, 1)}


def test_only_the_newest_results_are_cut() -> None:
    old, new = _answered(1, (5_000, 1)), _answered(3, (1_000, 1))
    assert _cut([old, new], 2_000) == Selection((new,), is_full=True)
    assert _cut([old, new, _said(5, 100)], 2_000) == Selection((new, _said(5, 100)), is_full=True)


def test_results_behind_what_does_not_fit_are_left_out() -> None:
    assert _cut([_answered(1, (100, 1)), _said(3, 600)], 500) == Selection((), is_full=True)


def test_without_room_each_result_keeps_the_least_share() -> None:
    selection = _cut([_answered(1, (5_000, 1), (100, 1))], -70)
    assert selection.cut == {2: Share(MIN_SHARE_TOKENS, 1)}


def test_results_with_too_many_bytes_are_cut() -> None:
    size = group_size_bytes(_answered(1, (1, 0), (1, 0)))
    selection = _cut([_answered(1, (1, 5_000), (1, 900))], 5_000, max_bytes=size + 4_000)
    assert selection.cut == {2: Share(MIN_SHARE_TOKENS, 3_100)}


@given(st.lists(st.integers(0, 1_000), max_size=8), st.integers(-100, 5_000))
def test_a_fair_share_is_the_largest_that_all_can_have(wanted: list[int], total: int) -> None:
    share = fair_share(wanted, total)

    def taken(limit: int) -> int:
        return sum(min(size, limit) for size in wanted)

    assert share >= 0
    assert taken(share) <= max(total, 0)
    if share < max(wanted, default=0):
        assert taken(share + 1) > total
