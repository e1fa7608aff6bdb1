"""Entries as lines of a session file."""

from datetime import UTC, datetime

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.export_lines import line_of

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_call_that_is_nested_too_deep_to_be_read_is_written_as_it_is() -> None:
    block = '{"type":"toolCall","id":"c","name":"read","arguments":' + "[" * 5000 + "]" * 5000 + "}"
    call = content_pb.ToolCall(tool_call_id="c", name="read", block_json=block)
    said = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)])
    line = line_of("ent_1", TIME, pb.EntryBody(message=said), "", {})
    assert f'"arguments": {{}}, "providerBlock": {block}' in line
