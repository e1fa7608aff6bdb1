"""Entries as lines of a session file."""

from datetime import UTC, datetime

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_transcript.operations.session_files.line_writer import line_of

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def _line(call_id: str, block: str) -> str:
    call = content_pb.ToolCall(tool_call_id=call_id, name="read", block_json=block)
    said = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)]
    )
    return line_of("ent_1", TIME, pb.EntryBody(message=said), "", {})


@pytest.mark.parametrize("name", ["id", "toolCallId", "tool_use_id", "call_id"])
def test_a_block_with_the_name_that_an_import_reads_is_written_alone(name: str) -> None:
    block = f'{{"type":"tool_use","{name}":"c","name":" read ","input":{{"path":"a"}}}}'
    assert f'"content": [{block}]' in _line("c", block)
    assert "providerBlock" in _line("d", block)


def test_a_call_nested_too_deep_to_parse_is_written_as_stored() -> None:
    block = '{"type":"toolCall","id":"c","name":"read","arguments":' + "[" * 5000 + "]" * 5000 + "}"
    line = _line("c", block)
    assert f'"arguments": {{}}, "providerBlock": {block}' in line
