"""Render a request for Gemini's generateContent."""

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.thinking import ThinkingLevel, ThinkingSetting
from spawnmesh_model_router.domain.tool_calls import parse_arguments

Wire = dict[str, Any]

THOUGHT_SIGNATURE = "thoughtSignature"
"""Key in the block of a call. Gemini wants its value back with the call."""

_EMPTY = "[empty message]"
_FOREIGN_SIGNATURE = b"skip_thought_signature_validator"
"""The signature that Gemini accepts for a call of another model."""


def generate_request(
    request: ProviderRequest,
    max_output: int,
    thinking: ThinkingSetting | None = None,
    *,
    needs_signatures: bool = False,
) -> tuple[list[Wire], Wire]:
    """Return the contents and the configuration. `max_output` is the model's limit.

    `needs_signatures` is for a model that refuses calls without a signature, such as those of other
    providers.
    """
    config: Wire = {"automatic_function_calling": {"disable": True}}
    if request.system_prompt:
        config["system_instruction"] = request.system_prompt
    if request.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parameters_json_schema": tool.parameters}
            for tool in request.tools
        ]
        config["tools"] = [{"function_declarations": declared}]
    if request.max_output:
        config["max_output_tokens"] = min(request.max_output, max_output)
    if thinking is not None:
        config["thinking_config"] = _thinking_config(thinking)
    contents = _contents(request.messages)
    return [_signed(content) for content in contents] if needs_signatures else contents, config


def _signed(content: Wire) -> Wire:
    """Return the content with a signature at its first call. The other calls need none."""
    parts = content["parts"]
    first = next((index for index, part in enumerate(parts) if "function_call" in part), None)
    if first is None or "thought_signature" in parts[first]:
        return content
    signed = {**parts[first], "thought_signature": _FOREIGN_SIGNATURE}
    return {**content, "parts": [*parts[:first], signed, *parts[first + 1 :]]}


def _thinking_config(thinking: ThinkingSetting) -> Wire:
    """Return the setting, with a request for the thoughts: without it the provider does not send
    them.
    """
    key = "thinking_budget" if isinstance(thinking.value, int) else "thinking_level"
    return {key: thinking.value, "include_thoughts": thinking.level is not ThinkingLevel.OFF}


def _contents(messages: Iterable[message_pb2.Message]) -> list[Wire]:
    """Return the contents.

    Neighbours of one role become one content, as all results of calls must.
    """
    contents: list[Wire] = []
    for role, neighbours in groupby(messages, key=_role):
        parts = [part for message in neighbours for part in _parts(message)]
        if parts or role == "user":
            contents.append({"role": role, "parts": parts or [{"text": _EMPTY}]})
    return contents


def _role(message: message_pb2.Message) -> str:
    return "model" if message.role == message_pb2.ROLE_ASSISTANT else "user"


def _parts(message: message_pb2.Message) -> Iterator[Wire]:
    """Yield the parts without thoughts: the signatures that Gemini wants back come with
    the calls.
    """
    if message.role == message_pb2.ROLE_TOOL_RESULT:
        text = "\n".join(block.text.text for block in message.content if block.text.text)
        response = {"error" if message.is_error else "output": text}
        yield {
            "function_response": {"name": message.tool_name, "id": message.tool_call_id, "response": response}
        }
    for block in message.content:
        if block.HasField("tool_call"):
            yield _call(block.tool_call)
        elif block.HasField("image"):
            yield {"inline_data": {"mime_type": block.image.mime_type, "data": block.image.data}}
        elif block.text.text and message.role != message_pb2.ROLE_TOOL_RESULT:
            yield {"text": block.text.text}


def _call(call: message_pb2.ToolCall) -> Wire:
    arguments = parse_arguments(call.block_json)
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
    """Return the signature; empty for a call of another provider."""
    try:
        block = json.loads(block_json)
        return b64decode(str(block.get(THOUGHT_SIGNATURE, "")), validate=True)
    except (ValueError, AttributeError, RecursionError, NotBase64):
        return b""
