"""Each result stands directly behind its call."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_transcript.domain.pairing import Paired, pair
from spawnmesh_transcript.domain.turns import MissingResult, Role, Turn

_CASES = json.loads((Path(__file__).parent / "cases" / "transcript_pairing.json").read_text())
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "toolResult": Role.TOOL_RESULT}
_CALL_TYPES = ("toolCall", "toolUse", "functionCall")


def _turn(seq: int, message: dict[str, Any]) -> Turn:
    # A call that its provider interrupted is no call: no tool received it. Messages of the mesh are
    # complete or absent.
    broken_off = message.get("stopReason") == "error"
    blocks = message["content"] if isinstance(message["content"], list) and not broken_off else []
    return Turn(
        seq=seq,
        role=_ROLES[message["role"]],
        token_count=1,
        calls=tuple(block["id"].strip() for block in blocks if block["type"] in _CALL_TYPES),
        answers=message.get("toolCallId", "").strip(),
    )


def _flat(paired: Paired) -> list[Turn | MissingResult]:
    return [member for group in paired.groups for member in group.members]


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_example_case(case: dict[str, Any]) -> None:
    given_messages = case["given"]["given"]["messages"]
    paired = pair([_turn(seq, message) for seq, message in enumerate(given_messages)])
    expected = case["expect"]["messages"]
    assert len(_flat(paired)) == len(expected)
    for member, message in zip(_flat(paired), expected, strict=True):
        if isinstance(member, Turn):
            assert given_messages[member.seq] == message
        else:
            assert message["toolCallId"] == member.call_id
            assert message["isError"]
    assert [member.call_id for member in _flat(paired) if isinstance(member, MissingResult)] == case[
        "expect"
    ]["addedIds"]
    assert len(paired.duplicates) == case["expect"]["droppedDuplicateCount"]
    assert len(paired.orphans) == case["expect"]["droppedOrphanCount"]


def _call(seq: int, *ids: str) -> Turn:
    return Turn(seq, Role.ASSISTANT, 1, calls=ids)


def _result(seq: int, call_id: str, *, is_synthetic: bool = False) -> Turn:
    return Turn(seq, Role.TOOL_RESULT, 1, answers=call_id, is_synthetic=is_synthetic)


@pytest.mark.parametrize("real_first", [True, False])
def test_a_real_result_takes_precedence_over_a_synthetic_one(real_first: bool) -> None:
    real, made_up = (
        (_result(2, "a"), _result(3, "a", is_synthetic=True))
        if real_first
        else (_result(3, "a"), _result(2, "a", is_synthetic=True))
    )
    paired = pair(sorted([_call(1, "a"), real, made_up], key=lambda turn: turn.seq))
    assert _flat(paired) == [_call(1, "a"), real]
    assert paired.duplicates == (made_up,)


def test_a_result_before_its_call_is_an_orphan() -> None:
    paired = pair([_result(1, "a"), _call(2, "a")])
    assert paired.orphans == (_result(1, "a"),)
    assert _flat(paired) == [_call(2, "a"), MissingResult("a")]


def test_results_come_in_the_order_of_their_calls() -> None:
    assert _flat(pair([_call(1, "a", "b"), _result(2, "b"), _result(3, "a")])) == [
        _call(1, "a", "b"),
        _result(3, "a"),
        _result(2, "b"),
    ]


_TURNS = st.lists(
    st.one_of(
        st.just(("user", ())),
        st.tuples(st.just("call"), st.lists(st.sampled_from("abc"), max_size=3, unique=True).map(tuple)),
        st.tuples(st.just("result"), st.sampled_from("abc")),
    ),
    max_size=30,
)


def _build(described: list[tuple[str, Any]]) -> list[Turn]:
    turns: list[Turn] = []
    for seq, (kind, detail) in enumerate(described):
        match kind:
            case "call":
                turns.append(_call(seq, *detail))
            case "result":
                turns.append(_result(seq, detail))
            case _:
                turns.append(Turn(seq, Role.USER, 1))
    return turns


@settings(max_examples=50)
@given(_TURNS)
def test_every_call_has_one_result_right_behind_it_and_nothing_is_lost(
    described: list[tuple[str, Any]],
) -> None:
    turns = _build(described)
    paired = pair(turns)
    for group in paired.groups:
        answered = [
            member.answers if isinstance(member, Turn) else member.call_id for member in group.results
        ]
        assert tuple(answered) == group.head.calls
    kept = [member.seq for member in _flat(paired) if isinstance(member, Turn)]
    removed = [turn.seq for turn in (*paired.orphans, *paired.duplicates)]
    assert sorted(kept + removed) == [turn.seq for turn in turns]


@settings(max_examples=50)
@given(_TURNS)
def test_paired_input_is_returned_unchanged(described: list[tuple[str, Any]]) -> None:
    once = [
        member if isinstance(member, Turn) else _result(0, member.call_id)
        for member in _flat(pair(_build(described)))
    ]
    again = pair(once)
    assert _flat(again) == once
    assert not again.orphans
    assert not again.duplicates
