"""Read the stream of OpenAI's chat completions."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.clients.providers.chat_shapes import arguments_text, flatten_delta
from spawnmesh_model_router.domain.answer import (
    Finished,
    Piece,
    PieceStream,
    StopReason,
    TextPiece,
    Thought,
    ToolCall,
    Usage,
    hidden_output,
)
from spawnmesh_model_router.domain.tool_calls import is_complete, tool_call_block

_STOPS = {
    "stop": StopReason.END,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSAL,
}


@dataclass(slots=True)
class _GrowingCall:
    index: int
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return is_complete("".join(self.arguments))

    def finish(self) -> ToolCall:
        # Some endpoints send no id, and the result of a call needs one.
        call_id = self.call_id or f"call_{secrets.token_hex(12)}"
        return ToolCall(call_id, self.name, tool_call_block(call_id, self.name, "".join(self.arguments)))


async def read_chat(batches: AsyncIterator[list[Any]]) -> PieceStream:
    """Yield text as it arrives, and thoughts and tool calls at the end of the answer.

    Texts of one batch become one piece. A last call that was cut off is dropped. A stream without
    an end yields no `Finished`.
    """
    calls: list[_GrowingCall] = []
    thoughts: list[str] = []
    refused = False
    reason = response_id = response_model = ""
    usage = Usage()
    async for batch in batches:
        texts: list[str] = []
        hidden: list[str] = []
        for chunk in batch:
            response_id, response_model = chunk.get("id") or response_id, chunk.get("model") or response_model
            if chunk.get("usage"):
                usage = _usage(chunk["usage"])
            for choice in (chunk.get("choices") or [])[:1]:
                delta = flatten_delta(choice.get("delta") or {})
                hidden.append(_thinking(delta))
                thoughts.append(hidden[-1])
                refused = refused or bool(delta.get("refusal"))
                texts += [text for text in (delta.get("content"), delta.get("refusal")) if text]
                hidden += [_grow(calls, part) for part in delta.get("tool_calls") or []]
                reason = choice.get("finish_reason") or reason
        for report in hidden_output(*hidden):
            yield report
        if texts:
            yield TextPiece("".join(texts))
    if reason:
        stop = StopReason.REFUSAL if refused else _STOPS.get(reason, StopReason.UNSPECIFIED)
        if not stop.is_chosen_by_model and calls and not calls[-1].is_complete:
            calls.pop()
        for piece in _rest(thoughts, calls):
            yield piece
        # Several compatible endpoints send `stop` after calls.
        if calls and stop is StopReason.END:
            stop = StopReason.TOOL_USE
        yield Finished(stop, usage, response_id, response_model)


def _rest(thoughts: list[str], calls: list[_GrowingCall]) -> list[Piece]:
    thought = "".join(thoughts)
    return [*([Thought(thought, "")] if thought else []), *(call.finish() for call in calls)]


def _grow(calls: list[_GrowingCall], part: dict[str, Any]) -> str:
    """Add the part to its call. Return the text that it adds to the arguments."""
    index, call_id = part.get("index") or 0, part.get("id") or ""
    growing = next((call for call in reversed(calls) if call.index == index), None)
    # Some endpoints send index 0 for every call: a new id is a new call.
    if growing is None or (call_id and growing.call_id and call_id != growing.call_id):
        growing = _GrowingCall(index, call_id)
        calls.append(growing)
    growing.call_id = growing.call_id or call_id
    function = part.get("function") or {}
    growing.name = growing.name or function.get("name") or ""
    arguments = arguments_text(function.get("arguments"))
    if isinstance(function.get("arguments"), dict) and any(growing.arguments):
        raise ValueError("complete arguments after partial ones")
    growing.arguments.append(arguments)
    return arguments


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
