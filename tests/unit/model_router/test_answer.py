"""Answers of a provider as they grow, and which ones are complete."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.answer import (
    Answer,
    Block,
    CallPiece,
    Finished,
    HiddenOutput,
    Piece,
    ProviderFailed,
    StopReason,
    TextPiece,
    Thought,
    ThoughtPiece,
    ToolCall,
    Usage,
    block_bytes,
    hidden_output,
    join_pieces,
    unreadable_tool_call,
    written_bytes_of,
)
from spawnmesh_model_router.domain.reasons import FailoverReason

CALL = ToolCall("call_1", "read_file", "{}")


def finished(stop: StopReason) -> Finished:
    return Finished(stop, Usage(1, 2))


def test_text_continues_only_the_text_right_before_it() -> None:
    answer = Answer()
    growing = (HiddenOutput(7), ThoughtPiece("hm"), CallPiece("call_2", "read_file", "{"))
    for piece in (TextPiece("a"), TextPiece("b"), CALL, TextPiece("c"), *growing, TextPiece("d")):
        answer.add(piece)
    assert answer.blocks == [TextPiece("ab"), CALL, TextPiece("cd")]
    assert answer.finished is None


@pytest.mark.parametrize(
    ("piece", "has_output"),
    [
        (TextPiece("a"), True),
        (CALL, True),
        (Thought("t", "s"), False),
        (ThoughtPiece("t"), False),
        (CallPiece("call_1", "read_file", "{}", True), False),
        (HiddenOutput(1), False),
    ],
)
def test_thoughts_and_pieces_of_calls_are_no_output(piece: Piece, has_output: bool) -> None:
    answer = Answer()
    answer.add(piece)
    assert answer.has_output is has_output


@pytest.mark.parametrize(
    ("blocks", "stop"),
    [
        ([TextPiece("a")], StopReason.END),
        ([CALL], StopReason.TOOL_USE),
        ([TextPiece("a")], StopReason.REFUSAL),
        ([], StopReason.LENGTH),
    ],
)
def test_answer_with_an_end_and_output_is_complete(
    blocks: list[TextPiece | ToolCall], stop: StopReason
) -> None:
    answer = Answer(list(blocks))
    answer.add(finished(stop))
    assert answer.require_complete() == finished(stop)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer([TextPiece("a")]), FailoverReason.TIMEOUT),
        (Answer([], finished(StopReason.REFUSAL)), FailoverReason.NO_FAILOVER),
        (Answer([Thought("t", "s")], finished(StopReason.END)), FailoverReason.EMPTY_RESPONSE),
    ],
)
def test_answer_without_end_or_output_failed(answer: Answer, reason: FailoverReason) -> None:
    with pytest.raises(ProviderFailed) as caught:
        answer.require_complete()
    assert caught.value.reason is reason
    assert caught.value.is_about_request is False


@pytest.mark.parametrize("stop", StopReason)
def test_model_chooses_to_end_or_to_call_a_tool(stop: StopReason) -> None:
    assert stop.is_chosen_by_model is (stop in (StopReason.END, StopReason.TOOL_USE))


def test_what_grows_is_counted_once_in_bytes() -> None:
    assert hidden_output("éa\ud800") == [HiddenOutput(4)]
    assert hidden_output("") == []
    growing: list[Piece] = [
        TextPiece("é"),
        ThoughtPiece("é"),
        CallPiece("call_1", "read_file", "é"),
        HiddenOutput(2),
    ]
    assert list(map(written_bytes_of, growing)) == [2, 2, 2, 2]
    complete: list[Piece] = [Thought("é", "s"), CALL, finished(StopReason.END)]
    assert list(map(written_bytes_of, complete)) == [0, 0, 0]
    blocks: list[Block] = [TextPiece("é"), Thought("é", "s"), CALL]
    assert list(map(block_bytes, blocks)) == [2, 2, 2]


_PIECES = st.lists(
    st.builds(TextPiece, st.text(max_size=2))
    | st.builds(ThoughtPiece, st.text(max_size=2))
    | st.builds(CallPiece, st.just("c"), st.just("t"), st.text(max_size=2), st.booleans())
    | st.builds(HiddenOutput, st.integers(0, 9), st.sampled_from([None, Usage(1)]))
    | st.sampled_from([CALL, Thought("t", "s")])
)


@given(_PIECES)
def test_joined_pieces_say_the_same_in_the_same_order(pieces: list[Piece]) -> None:
    joined = join_pieces(pieces)
    assert "".join(map(_spelled, joined)) == "".join(map(_spelled, pieces))
    assert sum(map(written_bytes_of, joined)) == sum(map(written_bytes_of, pieces))
    kinds = [type(piece) for piece in joined if piece not in (CALL, Thought("t", "s"))]
    begun = [piece for piece in joined if isinstance(piece, CallPiece) and piece.begins_call]
    read = [piece for piece in joined if isinstance(piece, HiddenOutput) and piece.read is not None]
    repeats = sum(one is other for one, other in pairwise(kinds))
    complete = len(joined) - len(kinds)
    assert repeats <= len(begun) + len(read) + complete


def _spelled(piece: Piece) -> str:
    """Spell each character with its kind, which joining must keep."""
    match piece:
        case TextPiece():
            return "".join(f"x{one}" for one in piece.text)
        case ThoughtPiece():
            return "".join(f"t{one}" for one in piece.text)
        case CallPiece():
            return "<" * piece.begins_call + "".join(f"c{one}" for one in piece.arguments)
        case HiddenOutput(read=Usage()):
            return "R"
        case HiddenOutput():
            return ""
    return "B"


def test_unreadable_tool_call_concerns_only_its_request() -> None:
    failed = unreadable_tool_call()
    assert (failed.reason, failed.is_about_request) == (FailoverReason.SERVER_ERROR, True)
