"""The log of an answer: its pieces are together what the answer has."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spawnmesh_core.answer_log import AnswerLog, CallHead, Said, SaidCall, SaidText, SaidThinking
from spawnmesh_core.call_blocks import call_block

TEXTS = st.text(alphabet="aé€😀 \n", min_size=1, max_size=12)
VALUES = st.dictionaries(st.sampled_from(["path", "lines"]), st.text(alphabet="aé \\\"'", max_size=8))
SPACE = st.sampled_from(["", " ", "\n\t"])
MANY = 10**6


def pieces_of(log: AnswerLog, offset: int = 0, max_bytes: int = MANY) -> list[Said]:
    return list(log.pieces_behind(offset, max_bytes, 100))


def size_of(piece: Said) -> int:
    return len(piece.text.encode()) + (
        piece.call.size if isinstance(piece, SaidCall) and piece.begins_call else 0
    )


def content(pieces: Iterable[Said]) -> list[list[object]]:
    """Return the text, the thinking, and the calls that the pieces say."""
    text, thinking, calls = "", "", []  # type: str, str, list[list[object]]
    for piece in pieces:
        match piece:
            case SaidText():
                text += piece.text
            case SaidThinking():
                thinking += piece.text
            case SaidCall() if piece.begins_call:
                calls.append([piece.call.tool_call_id, piece.call.name, piece.text])
            case SaidCall():
                assert calls[-1][:2] == [piece.call.tool_call_id, piece.call.name]
                calls[-1][2] = f"{calls[-1][2]}{piece.text}"
    return [[text], [thinking], *calls]


@st.composite
def chunks(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_pieces_are_together_what_the_answer_has(data: st.DataObject) -> None:
    log, read = AnswerLog(), []  # type: AnswerLog, list[Said]
    expected: list[list[object]] = [[""], [""]]

    def look() -> None:
        if data.draw(st.booleans()):
            read.extend(pieces_of(log, sum(map(size_of, read)), data.draw(st.integers(4, 40))))

    blocks = data.draw(st.lists(st.sampled_from(["text", "thinking", "call"]), max_size=6))
    blocks_to_complete = []
    for number, kind in enumerate(blocks):
        if kind == "call":
            head = CallHead(f"c{number}", "read_file")
            arguments = data.draw(st.sampled_from(["", json.dumps(data.draw(VALUES), ensure_ascii=False)]))
            block = call_block(head.tool_call_id, head.name, arguments or "{}")
            expected.append([head.tool_call_id, head.name, arguments or "{}"])
            sent = data.draw(st.sampled_from(["in pieces", "whole"]))
            if sent == "in pieces":
                padded = data.draw(SPACE) + arguments + data.draw(SPACE)
                for index, chunk in enumerate(data.draw(chunks(padded))):
                    log.add_call_piece(head, chunk, begins_call=index == 0)
                    look()
            if sent == "whole" or data.draw(st.booleans()):
                log.complete_call(head, block)
            else:  # Some providers complete all calls at their end.
                blocks_to_complete.append((head, block))
        else:
            for chunk in data.draw(chunks(data.draw(TEXTS))):
                (log.add_text if kind == "text" else log.add_thinking)(chunk)
                place = 0 if kind == "text" else 1
                expected[place] = [f"{expected[place][0]}{chunk}"]
                look()
        look()
    for head, block in blocks_to_complete:
        log.complete_call(head, block)
    while more := pieces_of(log, sum(map(size_of, read)), data.draw(st.integers(4, 40))):
        read.extend(more)
    assert not log.is_odd
    assert content(read) == content(pieces_of(log)) == expected


def test_a_call_has_at_most_so_many_pieces_and_bytes() -> None:
    log = AnswerLog()
    for _ in range(3):
        log.add_text("€€")
        log.add_thinking("Hm.")
    assert list(log.pieces_behind(0, MANY, 2)) == [SaidText("€€"), SaidThinking("Hm.")]
    assert list(log.pieces_behind(0, 8, 100)) == [SaidText("€€")]
    assert list(log.pieces_behind(3, 5, 100)) == [SaidText("€")]
    assert list(log.pieces_behind(6, 13, 100)) == [SaidThinking("Hm."), SaidText("€€"), SaidThinking("Hm.")]


@pytest.mark.parametrize(
    ("name", "chunks_said", "shown"),
    [
        ("sessions_spawn", ['{"task":', '"Read it"}'], ""),
        ("mcp__mesh__sessions_spawn", ['{"task":"Read it"}'], ""),
        # A call of another tool can have a spawn within it.
        ("parallel", ['{"uses":[{"name":', '"functions.sessions_spawn","x":1}]}'], '{"uses":[{"name":'),
        ("parallel", ['{"uses":[{"para', 'meters" : {"data":"aGVsbG8="}}]}'], '{"uses":[{"para'),
        ("parallel", ['{"json":"{', '\\"attachments\\":[]}"}'], '{"json":"{'),
        ("write_file", ['{"path":"a"', ',"content":"input is \\u00e9"}'], '{"path":"a"'),
        ("write_file", ['{"content":"input', ' of arguments"}'], '{"content":"input of arguments"}'),
    ],
)
def test_no_content_of_a_file_is_said_before_it_is_redacted(
    name: str, chunks_said: list[str], shown: str
) -> None:
    log, head = AnswerLog(), CallHead("c1", name)
    for index, chunk in enumerate(chunks_said):
        log.add_call_piece(head, chunk, begins_call=index == 0)
    log.complete_call(head, call_block("c1", name, "".join(chunks_said)))
    assert content(pieces_of(log))[2:] == [["c1", name, shown]]
    assert not log.is_odd
    # The same call, in one piece.
    log = AnswerLog()
    log.complete_call(head, call_block("c1", name, "".join(chunks_said)))
    (call,) = content(pieces_of(log))[2:]
    assert call[2] == (shown if shown.endswith("}") else "")


def test_an_answer_that_does_not_continue_its_pieces_is_odd_and_says_no_more() -> None:
    first, second = CallHead("c1", "read_file"), CallHead("c2", "read_file")
    log = AnswerLog()
    log.add_call_piece(first, '{"path":', begins_call=True)
    log.add_call_piece(second, "{}", begins_call=True)
    said = pieces_of(log)
    log.complete_call(first, call_block("c1", "read_file", '{"path":"a"}'))  # The rest comes too late.
    assert log.is_odd
    log.add_text("never")
    assert pieces_of(log) == said
    log = AnswerLog()
    log.add_call_piece(first, "no JSON", begins_call=True)
    log.complete_call(first, call_block("c1", "read_file", '"no JSON"'))
    assert log.is_odd
    log = AnswerLog()
    log.add_call_piece(first, "", begins_call=False)
    assert log.is_odd
