"""Render a request for Anthropic's messages."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.thinking import ThinkingSetting
from spawnmesh_model_router.domain.tool_calls import parse_arguments, portable_id

Wire = dict[str, Any]

REDACTED_THINKING = "redacted_thinking:"
"""Prefix of the signature of a thought that the provider encrypted completely."""

_THOUGHTS = ("thinking", "redacted_thinking")
_EMPTY = "[empty message]"
_SIGNATURE = re.compile(r"[A-Za-z0-9+/=_-]+")


def messages_request(
    request: ProviderRequest, model: str, max_output: int, thinking: ThinkingSetting | None = None
) -> Wire:
    """Return the body without `stream`. `max_output` is the model's limit, and the default."""
    body: Wire = {
        "model": model,
        "max_tokens": min(request.max_output or max_output, max_output),
        "messages": _messages(request.messages),
        # Each turn repeats the conversation so far. Without this mark, it is billed in full again.
        "cache_control": {"type": "ephemeral"},
    }
    if request.system_prompt:
        body["system"] = request.system_prompt
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    return body if thinking is None else {**body, **_thinking_fields(thinking)}


def accepts_thinking_budget(messages: Sequence[message_pb2.Message]) -> bool:
    """Return whether the provider accepts a thinking budget here.

    It refuses one during a turn if the newest answer has tool calls and does not begin with a
    thought.
    """
    newest: list[message_pb2.ContentBlock] = []
    for message in reversed(messages):
        if message.role == message_pb2.ROLE_ASSISTANT:
            newest = [*message.content, *newest]
        elif newest:
            break
    called = any(block.HasField("tool_call") for block in newest)
    first = next((kind for block in newest for kind in _types(block)), "")
    return not called or first in _THOUGHTS


def _types(block: message_pb2.ContentBlock) -> Iterator[str]:
    """Yield the types of what the block becomes, without reading the arguments of a call."""
    if block.HasField("tool_call"):
        yield "tool_use"
    else:
        yield from (wire["type"] for wire in _render_block(block))


def _thinking_fields(thinking: ThinkingSetting) -> Wire:
    if isinstance(thinking.value, str):
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": thinking.value}}
    if not thinking.value:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": thinking.value}}


def _messages(messages: Iterable[message_pb2.Message]) -> list[Wire]:
    """Return the messages with alternating roles: neighbours of one role become one message.

    The API refuses an answer that ends with a thought, so such a thought is left out. It occurs
    when the output limit is reached.
    """
    wire: list[Wire] = []
    for role, neighbours in groupby(messages, key=_role):
        content = [block for message in neighbours for block in _blocks(message)]
        while role == "assistant" and content and content[-1]["type"] in _THOUGHTS:
            content.pop()
        if content or role == "user":
            wire.append({"role": role, "content": content or [{"type": "text", "text": _EMPTY}]})
    return wire


def _role(message: message_pb2.Message) -> str:
    return "assistant" if message.role == message_pb2.ROLE_ASSISTANT else "user"


def _blocks(message: message_pb2.Message) -> Iterator[Wire]:
    if message.role == message_pb2.ROLE_TOOL_RESULT:
        yield {
            "type": "tool_result",
            "tool_use_id": portable_id(message.tool_call_id),
            "content": [part for block in message.content for part in _text_or_image(block)],
            "is_error": message.is_error,
        }
        return
    for block in message.content:
        yield from _render_block(block)


def _render_block(block: message_pb2.ContentBlock) -> Iterator[Wire]:
    if block.HasField("thinking"):
        yield from _thinking(block.thinking)
    elif block.HasField("tool_call"):
        yield _tool_use(block.tool_call)
    else:
        yield from _text_or_image(block)


def _text_or_image(block: message_pb2.ContentBlock) -> Iterator[Wire]:
    if block.HasField("image"):
        source = {
            "type": "base64",
            "media_type": block.image.mime_type,
            "data": b64encode(block.image.data).decode(),
        }
        yield {"type": "image", "source": source}
    elif block.text.text:
        yield {"type": "text", "text": block.text.text}


def _thinking(thinking: message_pb2.Thinking) -> Iterator[Wire]:
    """Yield the thought unchanged; nothing for a thought of another provider, which has another
    signature.
    """
    if thinking.signature.startswith(REDACTED_THINKING):
        yield {"type": "redacted_thinking", "data": thinking.signature.removeprefix(REDACTED_THINKING)}
    elif _SIGNATURE.fullmatch(thinking.signature):
        yield {"type": "thinking", "thinking": thinking.text, "signature": thinking.signature}


def _tool_use(call: message_pb2.ToolCall) -> Wire:
    arguments = parse_arguments(call.block_json)
    return {
        "type": "tool_use",
        "id": portable_id(call.tool_call_id),
        "name": call.name,
        "input": arguments if isinstance(arguments, dict) else {"arguments": arguments},
    }
