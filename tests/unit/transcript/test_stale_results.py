"""The results that become references, and where a context begins."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_transcript.domain.left_out import DropCause, LeftOut, begin_of, left_out, older
from spawnmesh_transcript.domain.pairing import pair
from spawnmesh_transcript.domain.selection import Selection, select
from spawnmesh_transcript.domain.stale_results import (
    Reference,
    TailLimits,
    Tiered,
    TurnPositions,
    begin_at_step,
    position_turns,
    with_stubs,
)
from spawnmesh_transcript.domain.turns import Group, Role, Turn

LIMITS = TailLimits(message_count=16, token_count=4_000)
STUB = Reference(40, 300)


def conversation(sizes: list[int]) -> list[Turn]:
    """Return a user's message, then a call and a result of each size."""
    turns = [Turn(2, Role.USER, 10)]
    for number, size in enumerate(sizes):
        seq = 3 + 2 * number
        turns.append(Turn(seq, Role.ASSISTANT, 20, (f"c{number}",)))
        turns.append(Turn(seq + 1, Role.TOOL_RESULT, size, (), f"c{number}"))
    return turns


def placed(turns: list[Turn], limits: TailLimits = LIMITS) -> TurnPositions:
    total = sum(turn.token_count for turn in turns)
    return position_turns(reversed(turns), turn_count=len(turns), token_count=total, limits=limits)


def assembled(turns: list[Turn], token_budget: int) -> tuple[Selection, Tiered, TurnPositions]:
    where = placed(turns)
    stubs = {turn.seq: STUB for turn in turns if turn.role is Role.TOOL_RESULT and turn.token_count > 300}
    tiered = with_stubs(pair(turns).groups, stubs, stale_seq=where.stale_seq)
    chosen = select(tiered.groups, token_budget=token_budget, always=turns[0], missing_result_token_count=5)
    return begin_at_step(chosen, where, always=turns[0]), tiered, where


def read(selection: Selection) -> list[Turn]:
    return [member for group in selection.groups for member in group.members if isinstance(member, Turn)]


sizes = st.lists(st.sampled_from([5, 30, 400, 3_000, 20_000]), min_size=1, max_size=60)


@given(sizes)
def test_the_fresh_tail_has_at_least_its_limits_and_at_most_one_step_more(drawn: list[int]) -> None:
    turns = conversation(drawn)
    stale_seq = placed(turns).stale_seq
    fresh = [turn for turn in turns if turn.seq > stale_seq]
    tokens = sum(turn.token_count for turn in fresh)
    assert len(fresh) >= min(16, len(turns)) or tokens >= 4_000
    newest = fresh[2:]  # Without the oldest call, which may exceed a limit, and its result.
    answered = next(at for at, turn in enumerate(reversed(turns)) if turn.role is Role.ASSISTANT) + 1
    if stale_seq and len(newest) > answered:
        assert len(newest) < 16 + 4
        assert sum(turn.token_count for turn in newest) < 4_000 + 1_000


@settings(max_examples=50)
@given(sizes, st.integers(1, 59))
def test_a_stale_entry_never_becomes_fresh_again(drawn: list[int], cut: int) -> None:
    turns = conversation(drawn)
    assert placed(turns[: 1 + 2 * cut]).stale_seq <= placed(turns).stale_seq


@pytest.mark.parametrize("role", [Role.USER, Role.NOTE])
def test_a_result_without_a_later_answer_is_fresh(role: Role) -> None:
    turns = [*conversation([50_000, 50_000]), Turn(7, role, 5_000)]
    assert placed(turns).stale_seq == 4
    assert placed([*turns, Turn(8, Role.ASSISTANT, 5)]).stale_seq == 6


@settings(max_examples=50)
@given(sizes, st.integers(500, 20_000))
def test_stale_results_become_references_that_are_shorter(drawn: list[int], budget: int) -> None:
    turns = conversation(drawn)
    selection, tiered, where = assembled(turns, budget)
    by_seq = {turn.seq: turn for turn in turns}
    for turn in read(selection):
        if turn.seq in tiered.stubbed:
            assert turn.seq <= where.stale_seq
            assert turn == by_seq[turn.seq]._replace(token_count=STUB.token_count, size_bytes=STUB.size_bytes)
            assert turn.token_count < by_seq[turn.seq].token_count
        else:
            assert turn == by_seq[turn.seq]
    assert {by_seq[seq].role for seq in tiered.stubbed} <= {Role.TOOL_RESULT}


def test_a_reference_that_is_not_shorter_is_not_used() -> None:
    groups = pair(conversation([40, 41])).groups
    assert with_stubs(groups, {4: STUB, 6: STUB}, stale_seq=6).stubbed == {6}
    fresh = with_stubs(groups, {4: STUB, 6: STUB}, stale_seq=5).stubbed
    assert fresh == frozenset(), "a call is as fresh as its result"


@settings(max_examples=50)
@given(sizes, st.integers(500, 20_000))
def test_the_budget_holds_and_calls_have_their_results(drawn: list[int], budget: int) -> None:
    turns = conversation(drawn)
    selection, _, _ = assembled(turns, budget)
    chosen = read(selection)
    assert sum(turn.token_count for turn in chosen) <= max(budget, turns[0].token_count)
    assert turns[0] in chosen
    for group in selection.groups:
        assert len(group.results) == len(group.head.calls)
    seqs = [turn.seq for turn in chosen[1:]]
    assert seqs == list(range(turns[-1].seq - len(seqs) + 1, turns[-1].seq + 1)), "the newest, without a gap"


def test_fresh_entries_are_not_dropped_to_begin_at_a_step() -> None:
    turns = conversation([30] * 200)
    where = placed(turns)
    fresh = tuple(group for group in pair(turns).groups if group.head.seq > where.stale_seq)
    selection = begin_at_step(Selection(fresh, is_full=True), where, always=None)
    assert selection.groups == fresh


@pytest.mark.parametrize(
    ("drawn", "share"),
    [
        ([200 + number * 37 % 90 for number in range(400)], 0.3),
        ([number * 7919 % 900 for number in range(400)], 0.6),
    ],
    ids=["even", "mixed"],
)
def test_a_context_begins_with_the_same_entry_for_several_turns(drawn: list[int], share: float) -> None:
    """Counts how often it would begin elsewhere if it had all that fits."""
    begins, exact = [], []
    for count in range(200, 400):
        turns = conversation(drawn[:count])
        selection, tiered, _ = assembled(turns, 20_000)
        begins.append(read(selection)[1].seq)
        whole = select(tiered.groups, token_budget=20_000, always=turns[0], missing_result_token_count=5)
        exact.append(read(whole)[1].seq)
        assert len(read(selection)) >= len(read(whole)) * 15 / 16 - 2
    assert _changes(begins) < _changes(exact) * share


def _changes(seqs: list[int]) -> int:
    return sum(one != other for one, other in pairwise(seqs))


def test_dropped_counts_depend_on_where_the_context_begins() -> None:
    first, last = (
        Group(Turn(2, Role.USER, 1)),
        Group(Turn(20, Role.ASSISTANT, 1), (Turn(22, Role.TOOL_RESULT, 1),)),
    )
    assert begin_of([first, last], first.head) == 20
    assert begin_of([first], first.head) == 0
    assert older(20, 30, 17) == (LeftOut(1, 19, 17, DropCause.BUDGET),)
    assert older(0, 30, 17) == (LeftOut(1, 30, 17, DropCause.BUDGET),)
    assert older(20, 30, 0) == ()
    assert left_out({3, 21, 24, 25}, [26, 23], begin_seq=20) == (
        LeftOut(21, 21, 1, DropCause.SUPERSEDED),
        LeftOut(23, 23, 1, DropCause.UNMATCHED),
        LeftOut(24, 25, 2, DropCause.SUPERSEDED),
        LeftOut(26, 26, 1, DropCause.UNMATCHED),
    )
