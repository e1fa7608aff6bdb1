"""Answers of a provider as they grow, and which ones are complete."""

import pytest
from spawnmesh_model_router.domain.answer import (
    Answer,
    Finished,
    HiddenOutput,
    ProviderFailed,
    StopReason,
    TextPiece,
    Thought,
    ToolCall,
    Usage,
    hidden_output,
    unreadable_tool_call,
)
from spawnmesh_model_router.domain.reasons import FailoverReason

CALL = ToolCall("call_1", "read_file", "{}")


def finished(stop: StopReason) -> Finished:
    return Finished(stop, Usage(1, 2))


def test_text_continues_only_the_text_right_before_it() -> None:
    answer = Answer()
    for piece in (TextPiece("a"), TextPiece("b"), CALL, HiddenOutput(7), TextPiece("c"), TextPiece("d")):
        answer.add(piece)
    assert answer.blocks == [TextPiece("ab"), CALL, TextPiece("cd")]
    assert answer.finished is None


@pytest.mark.parametrize(
    ("piece", "has_output"),
    [(TextPiece("a"), True), (CALL, True), (Thought("t", "s"), False), (HiddenOutput(1), False)],
)
def test_thoughts_are_no_output(
    piece: TextPiece | ToolCall | Thought | HiddenOutput, has_output: bool
) -> None:
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


def test_hidden_output_counts_bytes() -> None:
    assert hidden_output("é", "", "a\ud800") == [HiddenOutput(4)]
    assert hidden_output("", "") == []


def test_unreadable_tool_call_concerns_only_its_request() -> None:
    failed = unreadable_tool_call()
    assert (failed.reason, failed.is_about_request) == (FailoverReason.SERVER_ERROR, True)
