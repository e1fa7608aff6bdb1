"""A question in the form of Anthropic's messages."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.domain.calls import arguments_of, portable_id
from spawnmesh_model_router.domain.thinking import Told
from spawnmesh_model_router.providers.question import Question

Wire = dict[str, Any]

REDACTED_THINKING = "redacted_thinking:"
"""In front of the signature of a thought that the provider gave sealed as a whole."""

_THOUGHTS = ("thinking", "redacted_thinking")
_EMPTY = "[empty message]"
_SIGNATURE = re.compile(r"[A-Za-z0-9+/=_-]+")


def messages_request(question: Question, model: str, max_output: int, told: Told | None = None) -> Wire:
    """The request's body without `stream`. `max_output` is the most that the model may write, and asked for where the caller says nothing."""
    body: Wire = {
        "model": model,
        "max_tokens": min(question.max_output or max_output, max_output),
        "messages": _messages(question.messages),
        # A conversation that goes on repeats its beginning; without this mark the whole of it is paid for at every turn.
        "cache_control": {"type": "ephemeral"},
    }
    if question.system_prompt:
        body["system"] = question.system_prompt
    if question.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in question.tools
        ]
    return body if told is None else {**body, **_told(told)}


def can_begin_to_think(messages: Sequence[message_pb2.Message]) -> bool:
    """Whether the provider takes a budget for thinking here: not within a turn whose newest calls it was not thought about before."""
    newest: list[message_pb2.ContentBlock] = []
    for message in reversed(messages):
        if message.role == message_pb2.ROLE_ASSISTANT:
            newest = [*message.content, *newest]
        elif newest:
            break
    called = any(block.HasField("tool_call") for block in newest)
    first = next((wire["type"] for block in newest for wire in _said(block)), "")
    return not called or first in _THOUGHTS


def _told(told: Told) -> Wire:
    if isinstance(told.value, str):
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": told.value}}
    if not told.value:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": told.value}}


def _messages(messages: Iterable[message_pb2.Message]) -> list[Wire]:
    """Roles alternate: neighbours of one role are joined, and all results of an answer's calls come in one message.

    A thought that led to nothing, since the output limit came first, is left out: an answer that ends with one would be refused.
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
            "content": [part for block in message.content for part in _shown(block)],
            "is_error": message.is_error,
        }
        return
    for block in message.content:
        yield from _said(block)


def _said(block: message_pb2.ContentBlock) -> Iterator[Wire]:
    if block.HasField("thinking"):
        yield from _thinking(block.thinking)
    elif block.HasField("tool_call"):
        yield _tool_use(block.tool_call)
    else:
        yield from _shown(block)


def _shown(block: message_pb2.ContentBlock) -> Iterator[Wire]:
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
    """Unchanged. A thought without a signature of this provider's form is another's, and would be refused."""
    if thinking.signature.startswith(REDACTED_THINKING):
        yield {"type": "redacted_thinking", "data": thinking.signature.removeprefix(REDACTED_THINKING)}
    elif _SIGNATURE.fullmatch(thinking.signature):
        yield {"type": "thinking", "thinking": thinking.text, "signature": thinking.signature}


def _tool_use(call: message_pb2.ToolCall) -> Wire:
    arguments = arguments_of(call.block_json)
    return {
        "type": "tool_use",
        "id": portable_id(call.tool_call_id),
        "name": call.name,
        "input": arguments if isinstance(arguments, dict) else {"arguments": arguments},
    }
