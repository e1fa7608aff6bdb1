"""The content of an answer, as deltas of its draft and as its entry have it."""

from dataclasses import dataclass, field

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.transcript.v1.live_event_pb2 import DraftDelta
from spawnmesh_core.call_blocks import arguments_in


@dataclass(slots=True)
class DraftCall:
    """A tool call of an answer, with the JSON text of its arguments."""

    tool_call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class DraftContent:
    """The text, the thinking and the tool calls of an answer.

    Add the deltas of a draft. An entry that completes the draft has exactly the same.
    """

    text: str = ""
    thinking: str = ""
    calls: list[DraftCall] = field(default_factory=list)

    def add(self, delta: DraftDelta) -> None:
        """Append what the delta has. Raises ValueError for a part of a call that never began."""
        self.text += delta.text
        self.thinking += delta.thinking
        if delta.HasField("tool_call"):
            part = delta.tool_call
            if part.begins_call:
                self.calls.append(DraftCall(part.tool_call_id, part.name))
            newest = self.calls[-1] if self.calls else DraftCall("", "")
            if (newest.tool_call_id, newest.name) != (part.tool_call_id, part.name):
                raise ValueError(f"the call {part.tool_call_id} had not begun")
            newest.arguments += part.arguments


def content_of(message: Message) -> DraftContent:
    """Return the content of the answer of an entry."""
    content = DraftContent()
    for block in message.content:
        content.text += block.text.text
        content.thinking += block.thinking.text
        if block.HasField("tool_call"):
            call = block.tool_call
            arguments = arguments_in(call.tool_call_id, call.name, call.block_json)
            content.calls.append(DraftCall(call.tool_call_id, call.name, arguments))
    return content
