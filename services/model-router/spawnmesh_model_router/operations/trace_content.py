"""The content of a model call for its span, in the form of OpenTelemetry's GenAI conventions.

It is recorded only if the operator and the tenant have switched it on. Secrets are masked, and
nothing is longer than the operator allows: of a conversation, the newest messages are kept.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.json_text import TooManyNodes
from spawnmesh_core.secrets import mask_document, mask_text

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import Answer, Block, TextPiece, Thought, ToolCall
from spawnmesh_model_router.domain.tool_calls import parse_arguments

_ROLES: Final = {
    message_pb2.ROLE_ASSISTANT: "assistant",
    message_pb2.ROLE_TOOL_RESULT: "tool",
}
# A text is masked with so much more of it than is kept, or a secret at the cut would stay.
_MARGIN_CHARS: Final = 8192
_TEXT_SHARE: Final = 4
"""One text takes at most this part of the bytes: 1 / 4."""

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceContent:
    """Renders content as JSON texts of at most `max_bytes`, for attributes of spans."""

    max_bytes: int

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
        free = self.max_bytes
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
        free = self.max_bytes
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
                "response": self._cut(texts),
            }
        for block in message.content:
            if block.HasField("image"):
                yield _image(block.image)
            elif block.HasField("tool_call"):
                if message.role == message_pb2.ROLE_ASSISTANT:
                    call = block.tool_call
                    yield self._call(call.tool_call_id, call.name, call.block_json)
            elif block.HasField("thinking"):
                yield {"type": "reasoning", "content": self._cut(block.thinking.text)}
            elif message.role != message_pb2.ROLE_TOOL_RESULT:
                yield self._text(block.text.text)

    def _answer_part(self, block: Block) -> Part:
        match block:
            case TextPiece():
                return self._text(block.text)
            case Thought():
                return {"type": "reasoning", "content": self._cut(block.text)}
            case ToolCall():
                return self._call(block.call_id, block.name, block.block_json)

    def _text(self, text: str) -> Part:
        return {"type": "text", "content": self._cut(text)}

    def _call(self, call_id: str, name: str, block_json: str) -> Part:
        arguments = self._cut(json.dumps(parse_arguments(block_json), ensure_ascii=False))
        return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}

    def _cut(self, text: str) -> str:
        """Return the text without secrets, and its beginning if it is too long."""
        limit = self.max_bytes // _TEXT_SHARE
        masked = _masked(text[: limit + _MARGIN_CHARS])
        if len(text) <= limit and len(masked.encode("utf-8", "replace")) <= limit:
            return masked
        kept = masked.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
        return f"{kept}… [{len(text)} characters in all]"


def _masked(text: str) -> str:
    """Return the text without secrets, also without those that only their names in JSON show."""
    try:
        masked: str = json.loads(mask_document(json.dumps(text)))
    except TooManyNodes:
        return mask_text(text)
    return masked


def _image(image: message_pb2.Image) -> Part:
    return {"type": "image", "mime_type": image.mime_type, "size_bytes": len(image.data)}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
