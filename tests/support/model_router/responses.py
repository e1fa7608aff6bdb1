"""Streams of OpenAI's responses: complete items, with the events before and after them."""

import json
from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.model_router.provider import Answering, raw_sse

Event = dict[str, Any]

_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 25,
}


def response(status: str, **fields: Any) -> Event:
    """Return the response object of the outer events."""
    return {
        "id": "resp_9",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "served-model",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
        **fields,
    }


CREATED: list[Event] = [
    {"type": "response.created", "response": response("in_progress")},
    {"type": "response.in_progress", "response": response("in_progress")},
]
COMPLETED: Event = {"type": "response.completed", "response": response("completed", usage=USAGE)}


def incomplete(reason: str) -> Event:
    told = response("incomplete", incomplete_details={"reason": reason}, usage=USAGE)
    return {"type": "response.incomplete", "response": told}


def failed(code: str, message: str) -> Event:
    return {
        "type": "response.failed",
        "response": response("failed", error={"code": code, "message": message}),
    }


def said(*texts: str, place: int = 0) -> list[Event]:
    """Return a message in pieces."""
    at = {"item_id": f"msg_{place}", "output_index": place, "content_index": 0}
    whole = {"type": "output_text", "text": "".join(texts), "annotations": [], "logprobs": []}
    item = {
        "id": f"msg_{place}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    return [
        {"type": "response.output_item.added", "output_index": place, "item": item},
        {"type": "response.content_part.added", **at, "part": {**whole, "text": ""}},
        *({"type": "response.output_text.delta", **at, "delta": text, "logprobs": []} for text in texts),
        {"type": "response.output_text.done", **at, "text": whole["text"], "logprobs": []},
        {"type": "response.content_part.done", **at, "part": whole},
        {
            "type": "response.output_item.done",
            "output_index": place,
            "item": {**item, "status": "completed", "content": [whole]},
        },
    ]


def declined(*texts: str, place: int = 0) -> list[Event]:
    """Return a message that refuses."""
    at = {"item_id": f"msg_{place}", "output_index": place, "content_index": 0}
    part = {"type": "refusal", "refusal": "".join(texts)}
    item = {
        "id": f"msg_{place}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return [
        {"type": "response.output_item.added", "output_index": place, "item": {**item, "content": []}},
        *({"type": "response.refusal.delta", **at, "delta": text} for text in texts),
        {"type": "response.refusal.done", **at, "refusal": part["refusal"]},
        {"type": "response.output_item.done", "output_index": place, "item": item},
    ]


def called(call_id: str, name: str, *arguments: str, place: int = 0) -> list[Event]:
    """Return a function call with its arguments in pieces."""
    at = {"item_id": f"fc_{place}", "output_index": place}
    item = {"id": f"fc_{place}", "type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
    whole = {**item, "arguments": "".join(arguments), "status": "completed"}
    return [
        {
            "type": "response.output_item.added",
            "output_index": place,
            "item": {**item, "status": "in_progress"},
        },
        *({"type": "response.function_call_arguments.delta", **at, "delta": part} for part in arguments),
        {
            "type": "response.function_call_arguments.done",
            **at,
            "arguments": whole["arguments"],
            "name": name,
        },
        {"type": "response.output_item.done", "output_index": place, "item": whole},
    ]


def reasoned(summary: str, sealed: str, place: int = 0) -> list[Event]:
    """Return a thought: its summary, and its encrypted content."""
    at = {"item_id": f"rs_{place}", "output_index": place, "summary_index": 0}
    item = {"id": f"rs_{place}", "type": "reasoning", "summary": [], "encrypted_content": sealed}
    part = {"type": "summary_text", "text": summary}
    return [
        {"type": "response.output_item.added", "output_index": place, "item": item},
        {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **at, "delta": summary},
        {"type": "response.reasoning_summary_text.done", **at, "text": summary},
        {"type": "response.reasoning_summary_part.done", **at, "part": part},
        {
            "type": "response.output_item.done",
            "output_index": place,
            "item": {**item, "summary": [part] if summary else []},
        },
    ]


def numbered(*events: Event) -> list[Event]:
    """Number the events in order, and check that the SDK knows each of them."""
    whole = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    for event in whole:
        _EVENTS.validate_python(event)
    return whole


def responses(*events: Event) -> Answering:
    """Stream these events after those that begin every response."""
    return raw_sse(
        "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered(*CREATED, *events)
        )
    )
