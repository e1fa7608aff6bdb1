"""Reads the stream of OpenAI's chat completions."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletionChunk

from spawnmesh_model_router.domain.calls import call_block
from spawnmesh_model_router.providers.answer import Call, Finished, Piece, Pieces, Stop, TextPiece, Thought, Usage

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

    def whole(self) -> Call:
        call_id = self.call_id or f"call_{secrets.token_hex(12)}"  # Some endpoints give none, and results need one.
        return Call(call_id, self.name, call_block(call_id, self.name, "".join(self.arguments)))


async def read_chat(chunks: AsyncIterator[ChatCompletionChunk]) -> Pieces:
    """Text as it comes; thoughts and tool calls once the provider says that the answer is over. No `Finished` for a stream that just ends."""
    calls: list[_GrowingCall] = []
    thoughts: list[str] = []
    refused = False
    reason = response_id = response_model = ""
    usage = Usage()
    async for chunk in chunks:
        response_id, response_model = chunk.id or response_id, chunk.model or response_model
        if chunk.usage is not None:
            usage = _usage(chunk.usage)
        for choice in (chunk.choices or [])[:1]:
            delta = choice.delta
            thoughts.append(_thinking(delta))
            refused = refused or bool(delta.refusal)
            for said in (delta.content, delta.refusal):
                if said:
                    yield TextPiece(said)
            for part in delta.tool_calls or []:
                _grow(calls, part)
            reason = choice.finish_reason or reason
    for piece in _rest(thoughts, calls):
        if reason:
            yield piece
    if reason:
        stop = Stop.REFUSAL if refused else _STOPS.get(reason, Stop.UNSPECIFIED)
        if calls and stop is Stop.END:  # Several compatible endpoints say so.
            stop = Stop.TOOL_USE
        yield Finished(stop, usage, response_id, response_model)


def _rest(thoughts: list[str], calls: list[_GrowingCall]) -> list[Piece]:
    thought = "".join(thoughts)
    return [*([Thought(thought, "")] if thought else []), *(call.whole() for call in calls)]


def _grow(calls: list[_GrowingCall], part: Any) -> None:
    index, call_id = part.index or 0, part.id or ""
    growing = next((call for call in reversed(calls) if call.index == index), None)
    # Some endpoints number every call 0: another id is another call.
    if growing is None or (call_id and growing.call_id and call_id != growing.call_id):
        growing = _GrowingCall(index, call_id)
        calls.append(growing)
    growing.call_id = growing.call_id or call_id
    if part.function is not None:
        growing.name = growing.name or part.function.name or ""
        growing.arguments.append(part.function.arguments or "")


def _thinking(delta: Any) -> str:
    """A field that compatible endpoints of reasoning models add, under one of two names."""
    extra = delta.model_extra or {}
    said = extra.get("reasoning_content") or extra.get("reasoning")
    return said if isinstance(said, str) else ""


def _usage(usage: Any) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        input=usage.prompt_tokens or 0,
        output=usage.completion_tokens or 0,
        cache_read=(details.cached_tokens or 0) if details is not None else 0,
        cache_write=(details.cache_write_tokens or 0) if details is not None else 0,
    )
