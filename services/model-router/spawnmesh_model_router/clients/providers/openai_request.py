"""Render a request for OpenAI's chat completions."""

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.thinking import ThinkingSetting
from spawnmesh_model_router.domain.tool_calls import parse_arguments, portable_id

Wire = dict[str, Any]


def chat_request(
    request: ProviderRequest,
    model: str,
    max_output: int,
    *,
    compatible: bool,
    thinking: ThinkingSetting | None = None,
) -> Wire:
    """Return the body without `stream`.

    `max_output` is the model's limit. Compatible endpoints get it under its older name,
    `max_tokens`.
    """
    body: Wire = {"model": model, "messages": _messages(request)}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if request.max_output:
        limit = "max_tokens" if compatible else "max_completion_tokens"
        body[limit] = min(request.max_output, max_output)
    if thinking is not None:
        body["reasoning_effort"] = thinking.value
    return body


def _messages(request: ProviderRequest) -> list[Wire]:
    wire: list[Wire] = []
    if request.system_prompt:
        wire.append({"role": "system", "content": request.system_prompt})
    images: list[Wire] = []
    for message in request.messages:
        if message.role == message_pb2.ROLE_TOOL_RESULT:
            wire.append(_tool_result(message))
            images += _images(message)
            continue
        wire += _tool_images(images)
        images = []
        wire += _assistant(message) if message.role == message_pb2.ROLE_ASSISTANT else [_user(message)]
    return wire + _tool_images(images)


def _user(message: message_pb2.Message) -> Wire:
    parts = [part for block in message.content for part in _part(block)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"role": "user", "content": parts[0]["text"]}
    return {"role": "user", "content": parts or ""}


def _assistant(message: message_pb2.Message) -> list[Wire]:
    """Return the message; an empty list if it has only thoughts, which must not reach another
    provider.
    """
    text = _text(message)
    calls = [_call(block.tool_call) for block in message.content if block.HasField("tool_call")]
    if not text and not calls:
        return []
    return [{"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}]


def _call(call: message_pb2.ToolCall) -> Wire:
    arguments = parse_arguments(call.block_json)
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": portable_id(call.tool_call_id),
        "type": "function",
        "function": {"name": call.name, "arguments": written},
    }


def _tool_result(message: message_pb2.Message) -> Wire:
    return {
        "role": "tool",
        "tool_call_id": portable_id(message.tool_call_id),
        "content": _text(message, "\n"),
    }


def _tool_images(images: list[Wire]) -> list[Wire]:
    """Return the images of tool results as a user message after the last result.

    A tool message accepts only text.
    """
    if not images:
        return []
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Images from the tool results above:"}, *images],
        }
    ]


def _images(message: message_pb2.Message) -> Iterable[Wire]:
    return (_image(block.image) for block in message.content if block.HasField("image"))


def _part(block: message_pb2.ContentBlock) -> Iterable[Wire]:
    if block.HasField("image"):
        yield _image(block.image)
    elif block.text.text:
        yield {"type": "text", "text": block.text.text}


def _image(image: message_pb2.Image) -> Wire:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{image.mime_type};base64,{b64encode(image.data).decode()}"},
    }


def _text(message: message_pb2.Message, between: str = "") -> str:
    return between.join(block.text.text for block in message.content if block.text.text)
