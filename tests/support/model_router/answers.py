"""Answers of a fake model router."""

from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_client.turn_messages import text_message


def said(**event: Any) -> pb.GenerateResponse:
    """Return a response of one event, given by its field."""
    return pb.GenerateResponse(events=[pb.GenerationEvent(**event)])


def saying(text: str) -> message_pb2.Message:
    """Return an answer without tool calls."""
    message = text_message(message_pb2.ROLE_ASSISTANT, text)
    message.model = "scripted/one"
    message.usage.CopyFrom(message_pb2.TokenUsage(input_token_count=10, output_token_count=2))
    return message


def calling(*calls: tuple[str, str, str]) -> message_pb2.Message:
    """Return an answer that calls tools. Each call is (call id, tool, arguments as JSON)."""
    message = saying("")
    for call_id, tool, arguments in calls:
        block = f'{{"type":"toolCall","id":"{call_id}","name":"{tool}","arguments":{arguments}}}'
        call = message_pb2.ToolCall(tool_call_id=call_id, name=tool, block_json=block)
        message.content.append(message_pb2.ContentBlock(tool_call=call))
    return message
