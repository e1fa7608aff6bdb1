"""A result is cut within its tokens and bytes, and says how to read the rest."""

import re

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.domain.token_vocabularies import Measure, Vocabulary
from spawnmesh_transcript.operations.bodies.cut_results import cut_result
from spawnmesh_transcript.operations.bodies.tokens import body_token_count, count_tokens, token_prefix

NOTE = re.compile(r"\[Cut: [\d,]+ of [\d,]+ bytes of this result are shown\. To read the rest, .+\.\]")
LONG = "".join(f"line {number}\n" for number in range(5_000))


def _body(*blocks: content_pb.ContentBlock) -> bytes:
    message = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT, tool_call_id="c", tool_name="read", is_error=True, content=blocks
    )
    return pb.EntryBody(message=message).SerializeToString()


def _text(text: str) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(text=content_pb.Text(text=text))


def _image(data: bytes) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(image=content_pb.Image(mime_type="image/png", data=data))


def _blocks(body: bytes) -> list[content_pb.ContentBlock]:
    return list(pb.EntryBody.FromString(body).message.content)


def test_the_result_keeps_its_call_its_tool_and_its_error() -> None:
    cut = cut_result(_body(_text(LONG)), {}, token_count=500, size_bytes=1_000_000)
    message = pb.EntryBody.FromString(cut.body).message
    assert (message.tool_call_id, message.tool_name, message.is_error) == ("c", "read", True)
    assert body_token_count(pb.EntryBody.FromString(cut.body)) <= cut.token_count <= 500
    assert (cut.shown_bytes, cut.size_bytes) == (len(message.content[0].text.text), len(LONG))


def test_a_call_that_the_result_holds_stays() -> None:
    call = content_pb.ContentBlock(
        tool_call=content_pb.ToolCall(tool_call_id="c", name="read", block_json='{"id": "c"}')
    )
    for blocks in ([call, _text(LONG)], [_text(LONG), call]):
        cut = cut_result(_body(*blocks), {}, token_count=500, size_bytes=1_000_000)
        assert [block for block in _blocks(cut.body) if block.HasField("tool_call")] == [call]
        assert cut.token_count <= 500


def test_an_image_that_does_not_fit_is_left_out_with_all_behind_it() -> None:
    cut = cut_result(
        _body(_text("a"), _image(b"x" * 300), _text("b")), {1: "file_1"}, token_count=900, size_bytes=9_999
    )
    first, note = _blocks(cut.body)
    assert first.text.text == "a"
    assert "1 of 302 bytes" in note.text.text
    assert "file_id file_1 and offset 0" in note.text.text


def test_the_offset_counts_from_the_beginning_of_the_cut_block() -> None:
    cut = cut_result(_body(_text("front\n"), _text(LONG)), {1: "file_1"}, token_count=500, size_bytes=9_999)
    _, shown, note = _blocks(cut.body)
    assert f"offset {len(shown.text.text)}." in note.text.text
    assert f"[Cut: {len(shown.text.text) + 6:,} of" in note.text.text


@given(st.text(max_size=3_000), st.integers(0, 600), st.integers(0, 6_000), st.sampled_from(Vocabulary))
def test_what_is_shown_is_a_beginning_within_both_limits(
    text: str, token_count: int, size_bytes: int, vocabulary: Vocabulary
) -> None:
    cut = cut_result(
        _body(_text(text + "end")), {}, token_count=token_count, size_bytes=size_bytes, vocabulary=vocabulary
    )
    texts = [block.text.text for block in _blocks(cut.body)]
    if texts == [text + "end"]:
        assert cut.token_count <= token_count
        return
    *shown, note = texts
    assert NOTE.fullmatch(note)
    joined = "".join(shown)
    assert (text + "end").startswith(joined)
    assert len(joined.encode()) <= size_bytes
    if shown:
        assert cut.token_count <= token_count + 2  # Cut where two tokens meet, a text may take one more.


@given(st.text(max_size=500), st.integers(-5, 200))
def test_a_prefix_has_at_most_the_tokens(text: str, token_count: int) -> None:
    prefix, count = token_prefix(text, token_count)
    assert text.startswith(prefix)
    assert count_tokens(prefix) == count <= max(token_count, 0)


@given(st.integers(0, 1_000_000), st.sampled_from(Vocabulary), st.sampled_from([100, 130, 150]))
def test_tokens_within_a_measure_are_at_most_those(count: int, counted_by: Vocabulary, percent: int) -> None:
    measure = Measure(Vocabulary.O200K, percent)
    within = measure.within(count, counted_by)
    assert measure.of(within, counted_by) <= count < measure.of(within + 1, counted_by)
