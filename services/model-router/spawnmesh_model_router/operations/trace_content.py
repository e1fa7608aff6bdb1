"""The content of a model call for its span, in the form of OpenTelemetry's GenAI conventions.

It is recorded only if the operator and the tenant have switched it on. Secrets are masked, files of
spawns are left out, and nothing is longer than the operator allows: of a conversation, the newest
messages are kept.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.span_content import SpanContent

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import Answer, Block, TextPiece, Thought, ToolCall

_ROLES: Final = {
    message_pb2.ROLE_ASSISTANT: "assistant",
    message_pb2.ROLE_TOOL_RESULT: "tool",
}

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceContent:
    """Renders messages as JSON texts, for attributes of spans."""

    content: SpanContent

    def of_request(self, request: ProviderRequest) -> dict[str, str | int]:
        """Return the attributes of the system prompt and the newest messages."""
        messages, left_out = self._newest(request.messages)
        attributes: dict[str, str | int] = {"gen_ai.input.messages": _json(messages)}
        if left_out:
            attributes["spawnmesh.input.messages.left_out"] = left_out
        if request.system_prompt:
            attributes["gen_ai.system_instructions"] = _json([self._text(request.system_prompt)])
        return attributes

    def of_answer(self, answer: Answer, finish_reason: str) -> dict[str, str | int]:
        """Return the attribute of the answer, whole or cut."""
        parts = self._fitting(self._answer_part(block) for block in answer.blocks)
        message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
        return {"gen_ai.output.messages": _json([message])}

    def _newest(self, messages: tuple[message_pb2.Message, ...]) -> tuple[list[Part], int]:
        """Return the newest messages that fit, oldest first, and the number of the others."""
        kept: list[Part] = []
        free = self.content.max_bytes
        for message in reversed(messages):
            parts = self._fitting(self._parts(message))
            rendered = {"role": _ROLES.get(message.role, "user"), "parts": parts}
            free -= len(_json(rendered)) + 2
            if free < 0 and kept:
                break
            kept.append(rendered)
        return kept[::-1], len(messages) - len(kept)

    def _fitting(self, parts: Iterable[Part]) -> list[Part]:
        """Return the first parts that fit."""
        kept: list[Part] = []
        free = self.content.max_bytes
        for part in parts:
            free -= len(_json(part)) + 2
            if free < 0:
                return kept or [{"type": "omitted"}]
            kept.append(part)
        return kept

    def _parts(self, message: message_pb2.Message) -> Iterator[Part]:
        if message.role == message_pb2.ROLE_TOOL_RESULT:
            texts = "\n".join(block.text.text for block in message.content if block.HasField("text"))
            yield {
                "type": "tool_call_response",
                "id": message.tool_call_id,
                "response": self.content.text(texts),
            }
        for block in message.content:
            if block.HasField("image"):
                yield _image(block.image)
            elif block.HasField("tool_call"):
                if message.role == message_pb2.ROLE_ASSISTANT:
                    call = block.tool_call
                    yield self._call(call.tool_call_id, call.name, call.block_json)
            elif block.HasField("thinking"):
                yield {"type": "reasoning", "content": self.content.text(block.thinking.text)}
            elif message.role != message_pb2.ROLE_TOOL_RESULT:
                yield self._text(block.text.text)

    def _answer_part(self, block: Block) -> Part:
        match block:
            case TextPiece():
                return self._text(block.text)
            case Thought():
                return {"type": "reasoning", "content": self.content.text(block.text)}
            case ToolCall():
                return self._call(block.call_id, block.name, block.block_json)

    def _text(self, text: str) -> Part:
        return {"type": "text", "content": self.content.text(text)}

    def _call(self, call_id: str, name: str, block_json: str) -> Part:
        arguments = self.content.arguments(name, block_json)
        return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def _image(image: message_pb2.Image) -> Part:
    return {"type": "image", "mime_type": image.mime_type, "size_bytes": len(image.data)}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
