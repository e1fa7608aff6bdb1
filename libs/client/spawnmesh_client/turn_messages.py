"""Reading and building messages of the transcript."""

from collections.abc import Callable

from spawnmesh.content.v1 import message_pb2

Role = message_pb2.Role


def calls_of(message: message_pb2.Message) -> list[message_pb2.ToolCall]:
    """Return the tool calls of a message, in order."""
    return [block.tool_call for block in message.content if block.HasField("tool_call")]


def without_calls(message: message_pb2.Message) -> message_pb2.Message:
    """Return the message without its tool calls."""
    kept = message_pb2.Message()
    kept.CopyFrom(message)
    del kept.content[:]
    kept.content.extend(block for block in message.content if not block.HasField("tool_call"))
    return kept


def text_of(message: message_pb2.Message) -> str:
    """Return the text of a message, without thoughts and calls."""
    return "".join(block.text.text for block in message.content if block.HasField("text"))


def text_message(role: Role.ValueType, text: str) -> message_pb2.Message:
    """Return a message with one text."""
    return message_pb2.Message(
        role=role, content=[message_pb2.ContentBlock(text=message_pb2.Text(text=text))]
    )


def map_calls(
    message: message_pb2.Message, change: Callable[[message_pb2.ToolCall], message_pb2.ToolCall]
) -> message_pb2.Message:
    """Return the message with each tool call replaced by the result of `change`."""
    mapped = message_pb2.Message()
    mapped.CopyFrom(message)
    for call in calls_of(mapped):
        call.CopyFrom(change(call))
    return mapped
