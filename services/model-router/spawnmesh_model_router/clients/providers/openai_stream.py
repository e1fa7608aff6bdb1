"""Read the stream of OpenAI's chat completions."""

from collections.abc import AsyncIterator
from typing import Any

from spawnmesh_model_router.clients.providers.chat_shapes import arguments_text, flatten_delta
from spawnmesh_model_router.clients.providers.growing_call import GrowingCall
from spawnmesh_model_router.clients.providers.growing_thought import GrowingThought
from spawnmesh_model_router.domain.answer import (
    Finished,
    Piece,
    PieceStream,
    StopReason,
    TextPiece,
    Usage,
    join_pieces,
)

_STOPS = {
    "stop": StopReason.END,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSAL,
}


async def read_chat(batches: AsyncIterator[list[Any]]) -> PieceStream:
    """Yield text, thoughts and calls in pieces as they arrive, and complete thoughts and calls at
    the end of the answer.

    The pieces of one batch are joined. A last call that was cut off is dropped. A stream without an
    end yields no `Finished`.
    """
    calls: list[GrowingCall] = []
    thought = GrowingThought()
    refused = False
    reason = response_id = response_model = ""
    usage, reasoning = Usage(), 0
    async for batch in batches:
        pieces: list[Piece] = []
        for chunk in batch:
            response_id, response_model = chunk.get("id") or response_id, chunk.get("model") or response_model
            if chunk.get("usage"):
                usage, reasoning = _usage(chunk["usage"]), _reasoning(chunk["usage"])
            for choice in (chunk.get("choices") or [])[:1]:
                delta = flatten_delta(choice.get("delta") or {})
                refused = refused or bool(delta.get("refusal"))
                pieces += thought.grow(_thinking(delta))
                pieces += [TextPiece(text) for text in (delta.get("content"), delta.get("refusal")) if text]
                for part in delta.get("tool_calls") or []:
                    pieces += _grow(calls, part)
                reason = choice.get("finish_reason") or reason
        for piece in join_pieces(pieces):
            yield piece
    if reason:
        stop = StopReason.REFUSAL if refused else _STOPS.get(reason, StopReason.UNSPECIFIED)
        if not stop.is_chosen_by_model and calls and not calls[-1].is_complete:
            calls.pop()
        for block in [*thought.finish(), *(call.finish() for call in calls)]:
            yield block
        # Several compatible endpoints send `stop` after calls.
        if calls and stop is StopReason.END:
            stop = StopReason.TOOL_USE
        yield Finished(stop, usage, response_id, response_model, reasoning)


def _grow(calls: list[GrowingCall], part: dict[str, Any]) -> list[Piece]:
    """Add the part to its call. Return the pieces that show it, or hidden output."""
    index, call_id = part.get("index") or 0, part.get("id") or ""
    growing = next((call for call in reversed(calls) if call.index == index), None)
    # Some endpoints send index 0 for every call: a new id is a new call.
    if growing is None or (call_id and growing.provider_id and call_id != growing.provider_id):
        growing = GrowingCall(index)
        calls.append(growing)
    growing.provider_id = growing.provider_id or call_id
    function = part.get("function") or {}
    growing.name = growing.name or function.get("name") or ""
    arguments = function.get("arguments")
    if isinstance(arguments, dict) and growing.arguments:
        raise ValueError("complete arguments after partial ones")
    return growing.grow(arguments_text(arguments), is_newest=growing is calls[-1])


def _thinking(delta: dict[str, Any]) -> str:
    """Return the thinking, which compatible endpoints send under one of two names."""
    thinking = delta.get("reasoning_content") or delta.get("reasoning")
    return thinking if isinstance(thinking, str) else ""


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens") or 0,
        output=usage.get("completion_tokens") or 0,
        cache_read=details.get("cached_tokens") or 0,
        cache_write=details.get("cache_write_tokens") or 0,
    )


def _reasoning(usage: dict[str, Any]) -> int:
    details = usage.get("completion_tokens_details")
    return (details.get("reasoning_tokens") or 0) if isinstance(details, dict) else 0
