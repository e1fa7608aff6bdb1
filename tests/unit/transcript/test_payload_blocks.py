"""A body without its payloads is restored byte for byte, whatever other fields it has."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.operations.bodies.payload_blocks import with_payloads, without_payloads
from spawnmesh_transcript.operations.bodies.stubs import payload_of
from spawnmesh_transcript.operations.bodies.well_formed import serialize

TEXTS = st.text(max_size=50) | st.just("\U0001f9ca" * 300) | st.just("[Tool output file_ |\n]")
BLOCKS = st.one_of(
    TEXTS.map(lambda text: content_pb.ContentBlock(text=content_pb.Text(text=text))),
    st.tuples(st.binary(max_size=500), st.text(max_size=9)).map(
        lambda given: content_pb.ContentBlock(image=content_pb.Image(data=given[0], mime_type=given[1]))
    ),
    st.tuples(TEXTS, TEXTS).map(
        lambda given: content_pb.ContentBlock(thinking=content_pb.Thinking(text=given[0], signature=given[1]))
    ),
    st.tuples(TEXTS, TEXTS).map(
        lambda given: content_pb.ContentBlock(
            tool_call=content_pb.ToolCall(tool_call_id=given[0], name="read", block_json=given[1])
        )
    ),
)
SOURCES = st.none() | st.builds(
    pb.Source, id=TEXTS, line=TEXTS, gaps=st.lists(st.integers(min_value=-1, max_value=2**31 - 1), max_size=4)
)
MESSAGES = st.builds(
    content_pb.Message,
    role=st.sampled_from([content_pb.ROLE_USER, content_pb.ROLE_ASSISTANT, content_pb.ROLE_TOOL_RESULT]),
    content=st.lists(BLOCKS, max_size=6),
    tool_call_id=TEXTS,
    tool_name=TEXTS,
    is_error=st.booleans(),
)
BODIES = st.builds(pb.EntryBody, message=MESSAGES, source=SOURCES).map(serialize)
UNKNOWN = st.sampled_from([b"", b"\xf8\x3f\x07", b"\xfa\x3f\x03abc"])  # Fields of a future version.


def _payloads(body: bytes) -> dict[int, bytes]:
    content = pb.EntryBody.FromString(body).message.content
    return {index: data for index, block in enumerate(content) if (data := payload_of(block)) is not None}


@given(BODIES, UNKNOWN, st.data())
def test_removed_payloads_are_restored(body: bytes, unknown: bytes, data: st.DataObject) -> None:
    body += unknown
    payloads = _payloads(body)
    chosen = data.draw(st.sets(st.sampled_from(sorted(payloads)))) if payloads else set()
    shorter = without_payloads(body, chosen)
    assert with_payloads(shorter, {index: payloads[index] for index in chosen}) == body
    assert len(shorter) <= len(body) - sum(len(payloads[index]) for index in chosen)
    left = _payloads(shorter)
    assert left == {index: b"" if index in chosen else payload for index, payload in payloads.items()}


@given(BODIES)
def test_a_body_without_payloads_stays_unchanged(body: bytes) -> None:
    count = len(pb.EntryBody.FromString(body).message.content)
    for index in sorted({*range(count + 1)} - _payloads(body).keys()):
        with pytest.raises(ValueError, match=f"block {index} "):
            without_payloads(body, [index])
