"""A question in the form of Gemini's generateContent."""

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.domain.calls import arguments_of
from spawnmesh_model_router.domain.thinking import ThinkingLevel, Told
from spawnmesh_model_router.providers.question import Question

Wire = dict[str, Any]

THOUGHT_SIGNATURE = "thoughtSignature"
"""Beside a call in its block: what Gemini wants back with it."""

_EMPTY = "[empty message]"
_NOT_THOUGHT_HERE = b"skip_thought_signature_validator"
"""What Gemini takes for the signature of a call that another model made."""


def generate_request(
    question: Question, max_output: int, told: Told | None = None, *, needs_signatures: bool = False
) -> tuple[list[Wire], Wire]:
    """Contents and configuration. `max_output` is the most that the model may write; `needs_signatures` is for a model that refuses calls whose
    thoughts are not signed, as those of other providers are."""
    config: Wire = {"automatic_function_calling": {"disable": True}}
    if question.system_prompt:
        config["system_instruction"] = question.system_prompt
    if question.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parameters_json_schema": tool.parameters}
            for tool in question.tools
        ]
        config["tools"] = [{"function_declarations": declared}]
    if question.max_output:
        config["max_output_tokens"] = min(question.max_output, max_output)
    if told is not None:
        config["thinking_config"] = _told(told)
    contents = _contents(question.messages)
    return [_signed(content) for content in contents] if needs_signatures else contents, config


def _signed(content: Wire) -> Wire:
    """The content with a signature at its first call; the others of one answer need none."""
    parts = content["parts"]
    first = next((place for place, part in enumerate(parts) if "function_call" in part), None)
    if first is None or "thought_signature" in parts[first]:
        return content
    signed = {**parts[first], "thought_signature": _NOT_THOUGHT_HERE}
    return {**content, "parts": [*parts[:first], signed, *parts[first + 1 :]]}


def _told(told: Told) -> Wire:
    """What was asked for is also shown: the provider keeps thoughts back unless they are wanted."""
    key = "thinking_budget" if isinstance(told.value, int) else "thinking_level"
    return {key: told.value, "include_thoughts": told.level is not ThinkingLevel.OFF}


def _contents(messages: Iterable[message_pb2.Message]) -> list[Wire]:
    """Neighbours of one role are joined: all results of an answer's calls come in one content."""
    contents: list[Wire] = []
    for role, neighbours in groupby(messages, key=_role):
        parts = [part for message in neighbours for part in _parts(message)]
        if parts or role == "user":
            contents.append({"role": role, "parts": parts or [{"text": _EMPTY}]})
    return contents


def _role(message: message_pb2.Message) -> str:
    return "model" if message.role == message_pb2.ROLE_ASSISTANT else "user"


def _parts(message: message_pb2.Message) -> Iterator[Wire]:
    """Thoughts stay behind: what Gemini wants of them back comes with the calls."""
    if message.role == message_pb2.ROLE_TOOL_RESULT:
        text = "\n".join(block.text.text for block in message.content if block.text.text)
        response = {"error" if message.is_error else "output": text}
        yield {"function_response": {"name": message.tool_name, "id": message.tool_call_id, "response": response}}
    for block in message.content:
        if block.HasField("tool_call"):
            yield _call(block.tool_call)
        elif block.HasField("image"):
            yield {"inline_data": {"mime_type": block.image.mime_type, "data": block.image.data}}
        elif block.text.text and message.role != message_pb2.ROLE_TOOL_RESULT:
            yield {"text": block.text.text}


def _call(call: message_pb2.ToolCall) -> Wire:
    arguments = arguments_of(call.block_json)
    wire: Wire = {
        "function_call": {
            "name": call.name,
            "id": call.tool_call_id,
            "args": arguments if isinstance(arguments, dict) else {"arguments": arguments},
        }
    }
    signature = _signature(call.block_json)
    return {**wire, "thought_signature": signature} if signature else wire


def _signature(block_json: str) -> bytes:
    """Empty where the call is another provider's."""
    try:
        block = json.loads(block_json)
        return b64decode(str(block.get(THOUGHT_SIGNATURE, "")), validate=True)
    except (ValueError, AttributeError, RecursionError, NotBase64):
        return b""
