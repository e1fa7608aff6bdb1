"""Render a request for OpenAI's responses."""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.thinking import ThinkingSetting
from spawnmesh_model_router.domain.tool_calls import parse_arguments, portable_id

Wire = dict[str, Any]

SEALED_REASONING = "openai_reasoning:"
"""Prefix of the signature of a thought.

The encrypted reasoning follows; the provider wants it back.
"""

_MIN_OUTPUT = 16  # The API refuses a smaller limit.


def responses_request(
    request: ProviderRequest,
    provider: str,
    model: str,
    max_output: int,
    *,
    thinks: bool,
    thinking: ThinkingSetting | None = None,
) -> Wire:
    """Return the body without `stream`.

    The provider stores nothing (`store` is false), so it returns its reasoning encrypted.
    `max_output` is the model's limit. A model that does not think refuses requests for reasoning
    and earlier reasoning.
    """
    name = f"{provider}/{model}" if thinks else ""
    body: Wire = {"model": model, "input": _input(request, name), "store": False}
    if request.system_prompt:
        body["instructions"] = request.system_prompt
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ]
    if request.max_output:
        body["max_output_tokens"] = max(min(request.max_output, max_output), _MIN_OUTPUT)
    if thinks:
        body["include"] = ["reasoning.encrypted_content"]
    if thinking is not None:
        body["reasoning"] = {"effort": thinking.value}
    return body


def without_reasoning(body: Wire) -> Wire:
    """Return the body without earlier reasoning."""
    return {**body, "input": [item for item in body["input"] if item.get("type") != "reasoning"]}


def _input(request: ProviderRequest, thinker: str) -> list[Wire]:
    items: list[Wire] = []
    for message in request.messages:
        if message.role == message_pb2.ROLE_ASSISTANT:
            items += _answer(message, with_thoughts=bool(thinker) and message.model == thinker)
        elif message.role == message_pb2.ROLE_TOOL_RESULT:
            items.append(_result(message))
        else:
            items.append({"type": "message", "role": "user", "content": list(_parts(message)) or ""})
    return items


def _answer(message: message_pb2.Message, *, with_thoughts: bool) -> list[Wire]:
    """Return the items of an answer, with the model's own thoughts before what they led to.

    The API refuses a thought that leads to nothing.
    """
    items: list[Wire] = []
    for block in message.content:
        if block.HasField("tool_call"):
            items.append(_call(block.tool_call))
        elif block.HasField("thinking"):
            if with_thoughts and block.thinking.signature.startswith(SEALED_REASONING):
                items.append(_reasoning(block.thinking))
        elif block.text.text:
            part = {"type": "output_text", "text": block.text.text}
            items.append({"type": "message", "role": "assistant", "content": [part]})
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _reasoning(thinking: message_pb2.Thinking) -> Wire:
    return {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thinking.text}] if thinking.text else [],
        "encrypted_content": thinking.signature.removeprefix(SEALED_REASONING),
    }


def _call(call: message_pb2.ToolCall) -> Wire:
    arguments = parse_arguments(call.block_json)
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "type": "function_call",
        "call_id": portable_id(call.tool_call_id),
        "name": call.name,
        "arguments": written,
    }


def _result(message: message_pb2.Message) -> Wire:
    parts = list(_parts(message))
    sees = any(part["type"] == "input_image" for part in parts)
    output = parts if sees else "\n".join(part["text"] for part in parts)
    return {"type": "function_call_output", "call_id": portable_id(message.tool_call_id), "output": output}


def _parts(message: message_pb2.Message) -> Iterator[Wire]:
    for block in message.content:
        if block.HasField("image"):
            url = f"data:{block.image.mime_type};base64,{b64encode(block.image.data).decode()}"
            yield {"type": "input_image", "image_url": url}
        elif block.text.text:
            yield {"type": "input_text", "text": block.text.text}
