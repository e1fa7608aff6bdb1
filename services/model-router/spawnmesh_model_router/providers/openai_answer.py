"""Reads the stream of OpenAI's chat completions."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.domain.calls import call_block, is_whole
from spawnmesh_model_router.providers.answer import (
    Call,
    Finished,
    Piece,
    Pieces,
    Stop,
    TextPiece,
    Thought,
    Usage,
    unseen,
)
from spawnmesh_model_router.providers.chat_shapes import arguments_text, flat

_STOPS = {
    "stop": Stop.END,
    "tool_calls": Stop.TOOL_USE,
    "function_call": Stop.TOOL_USE,
    "length": Stop.LENGTH,
    "content_filter": Stop.REFUSAL,
}


@dataclass(slots=True)
class _GrowingCall:
    index: int
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return is_whole("".join(self.arguments))

    def whole(self) -> Call:
        call_id = self.call_id or f"call_{secrets.token_hex(12)}"  # Some endpoints give none, and results need one.
        return Call(call_id, self.name, call_block(call_id, self.name, "".join(self.arguments)))


async def read_chat(batches: AsyncIterator[list[Any]]) -> Pieces:
    """Text as it comes, in one piece where several came together; thoughts and tool calls once the provider says that the answer is over, but
    for a last call that was cut off. No `Finished` for a stream that just ends."""
    calls: list[_GrowingCall] = []
    thoughts: list[str] = []
    refused = False
    reason = response_id = response_model = ""
    usage = Usage()
    async for batch in batches:
        said: list[str] = []
        hidden: list[str] = []
        for chunk in batch:
            response_id, response_model = chunk.get("id") or response_id, chunk.get("model") or response_model
            if chunk.get("usage"):
                usage = _usage(chunk["usage"])
            for choice in (chunk.get("choices") or [])[:1]:
                delta = flat(choice.get("delta") or {})
                hidden.append(_thinking(delta))
                thoughts.append(hidden[-1])
                refused = refused or bool(delta.get("refusal"))
                said += [text for text in (delta.get("content"), delta.get("refusal")) if text]
                hidden += [_grow(calls, part) for part in delta.get("tool_calls") or []]
                reason = choice.get("finish_reason") or reason
        for report in unseen(*hidden):
            yield report
        if said:
            yield TextPiece("".join(said))
    if reason:
        stop = Stop.REFUSAL if refused else _STOPS.get(reason, Stop.UNSPECIFIED)
        if not stop.is_models_own and calls and not calls[-1].is_whole:
            calls.pop()
        for piece in _rest(thoughts, calls):
            yield piece
        if calls and stop is Stop.END:  # Several compatible endpoints say so.
            stop = Stop.TOOL_USE
        yield Finished(stop, usage, response_id, response_model)


def _rest(thoughts: list[str], calls: list[_GrowingCall]) -> list[Piece]:
    thought = "".join(thoughts)
    return [*([Thought(thought, "")] if thought else []), *(call.whole() for call in calls)]


def _grow(calls: list[_GrowingCall], part: dict[str, Any]) -> str:
    """Adds the part to its call; gives what it adds to the arguments."""
    index, call_id = part.get("index") or 0, part.get("id") or ""
    growing = next((call for call in reversed(calls) if call.index == index), None)
    # Some endpoints number every call 0: another id is another call.
    if growing is None or (call_id and growing.call_id and call_id != growing.call_id):
        growing = _GrowingCall(index, call_id)
        calls.append(growing)
    growing.call_id = growing.call_id or call_id
    function = part.get("function") or {}
    growing.name = growing.name or function.get("name") or ""
    arguments = arguments_text(function.get("arguments"))
    if isinstance(function.get("arguments"), dict) and any(growing.arguments):
        raise ValueError("arguments that are whole, behind others")
    growing.arguments.append(arguments)
    return arguments


def _thinking(delta: dict[str, Any]) -> str:
    """A field that compatible endpoints of reasoning models add, under one of two names."""
    said = delta.get("reasoning_content") or delta.get("reasoning")
    return said if isinstance(said, str) else ""


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens") or 0,
        output=usage.get("completion_tokens") or 0,
        cache_read=details.get("cached_tokens") or 0,
        cache_write=details.get("cache_write_tokens") or 0,
    )
