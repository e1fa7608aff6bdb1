"""Reads the stream of Anthropic's messages."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import RawMessageStreamEvent

from spawnmesh_model_router.domain.calls import call_block, is_whole
from spawnmesh_model_router.providers.answer import (
    Call,
    Finished,
    Pieces,
    Stop,
    TextPiece,
    Thought,
    Unseen,
    Usage,
    unseen,
)
from spawnmesh_model_router.providers.anthropic_request import REDACTED_THINKING

_STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "pause_turn": Stop.END,
    "tool_use": Stop.TOOL_USE,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.REFUSAL,
}


@dataclass(slots=True)
class _GrowingBlock:
    start: Any
    text: list[str] = field(default_factory=list)
    signature: str = ""

    @property
    def may_be_cut(self) -> bool:
        return self.start.type == "tool_use" and not is_whole("".join(self.text))

    def whole(self) -> Thought | Call | None:
        text = "".join(self.text)
        match self.start.type:
            case "tool_use":
                return Call(self.start.id, self.start.name, call_block(self.start.id, self.start.name, text))
            case "thinking":
                return Thought((self.start.thinking or "") + text, self.signature or self.start.signature or "")
            case "redacted_thinking":
                return Thought("", REDACTED_THINKING + self.start.data)
        return None


async def read_messages(events: AsyncIterator[RawMessageStreamEvent]) -> Pieces:
    """Text as it comes, thoughts and tool calls when they are whole; a last call that was cut off never is. No `Finished` for a
    stream that just ends."""
    blocks: dict[int, _GrowingBlock] = {}
    doubtful: Thought | Call | None = None
    reason = response_id = response_model = ""
    usage = Usage()
    async for event in events:
        match event.type:
            case "message_start":
                response_id, response_model = event.message.id, event.message.model
                usage = _usage(getattr(event.message, "usage", None), usage)
                yield Unseen(read=usage)
            case "content_block_start":
                if doubtful is not None:  # Not the last one.
                    yield doubtful
                    doubtful = None
                blocks[event.index] = _GrowingBlock(event.content_block)
                if event.content_block.type == "text" and event.content_block.text:
                    yield TextPiece(event.content_block.text)
            case "content_block_delta":
                said, hidden = _grow(blocks[event.index], event.delta)
                if said:
                    yield TextPiece(said)
                for report in unseen(hidden):
                    yield report
            case "content_block_stop":
                ended = blocks.pop(event.index)
                block = ended.whole()
                if ended.may_be_cut:
                    doubtful = block
                elif block is not None:
                    yield block
            case "message_delta":
                reason = event.delta.stop_reason or reason
                usage = _usage(getattr(event, "usage", None), usage)
            case "message_stop":
                stop = _STOPS.get(reason, Stop.UNSPECIFIED)
                if doubtful is not None and stop.is_models_own:
                    yield doubtful
                yield Finished(stop, usage, response_id, response_model)


def _grow(block: _GrowingBlock, delta: Any) -> tuple[str, str]:
    """Adds to the block; gives the text that the caller is to see, and what of it nobody sees yet."""
    match delta.type:
        case "text_delta":
            return str(delta.text or ""), ""
        case "input_json_delta" | "thinking_delta":
            part = delta.partial_json if delta.type == "input_json_delta" else delta.thinking
            block.text.append(part)
            return "", part
        case "signature_delta":
            block.signature = delta.signature
    return "", ""


def _usage(said: Any, before: Usage) -> Usage:
    """Counts are totals so far; one that is left out has not changed."""
    if said is None:  # Some endpoints that speak the format leave all of them out.
        return before
    uncached = before.input - before.cache_read - before.cache_write
    read = _newest(said.cache_read_input_tokens, before.cache_read)
    write = _newest(said.cache_creation_input_tokens, before.cache_write)
    return Usage(
        input=_newest(said.input_tokens, uncached) + read + write,
        output=_newest(said.output_tokens, before.output),
        cache_read=read,
        cache_write=write,
    )


def _newest(said: int | None, before: int) -> int:
    return before if said is None else said
