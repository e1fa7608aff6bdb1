"""Read the stream of Anthropic's messages."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import RawMessageStreamEvent

from spawnmesh_model_router.clients.providers.anthropic_request import REDACTED_THINKING
from spawnmesh_model_router.domain.answer import (
    Finished,
    HiddenOutput,
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
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "pause_turn": StopReason.END,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.REFUSAL,
}


@dataclass(slots=True)
class _GrowingBlock:
    start: Any
    text: list[str] = field(default_factory=list)
    signature: str = ""

    @property
    def may_be_cut(self) -> bool:
        return self.start.type == "tool_use" and not is_complete("".join(self.text))

    def finish(self) -> Thought | ToolCall | None:
        text = "".join(self.text)
        match self.start.type:
            case "tool_use":
                return ToolCall(
                    self.start.id, self.start.name, tool_call_block(self.start.id, self.start.name, text)
                )
            case "thinking":
                return Thought(
                    (self.start.thinking or "") + text, self.signature or self.start.signature or ""
                )
            case "redacted_thinking":
                return Thought("", REDACTED_THINKING + self.start.data)
        return None


async def read_messages(events: AsyncIterator[RawMessageStreamEvent]) -> PieceStream:
    """Yield text as it arrives, and thoughts and tool calls once they are complete.

    A last call that was cut off is dropped. A stream without an end yields no `Finished`.
    """
    blocks: dict[int, _GrowingBlock] = {}
    maybe_cut: Thought | ToolCall | None = None
    reason = response_id = response_model = ""
    usage = Usage()
    async for event in events:
        match event.type:
            case "message_start":
                response_id, response_model = event.message.id, event.message.model
                usage = _usage(getattr(event.message, "usage", None), usage)
                yield HiddenOutput(read=usage)
            case "content_block_start":
                if maybe_cut is not None:  # It was not the last block.
                    yield maybe_cut
                    maybe_cut = None
                blocks[event.index] = _GrowingBlock(event.content_block)
                if event.content_block.type == "text" and event.content_block.text:
                    yield TextPiece(event.content_block.text)
            case "content_block_delta":
                text, hidden = _grow(blocks[event.index], event.delta)
                if text:
                    yield TextPiece(text)
                for report in hidden_output(hidden):
                    yield report
            case "content_block_stop":
                ended = blocks.pop(event.index)
                block = ended.finish()
                if ended.may_be_cut:
                    maybe_cut = block
                elif block is not None:
                    yield block
            case "message_delta":
                reason = event.delta.stop_reason or reason
                usage = _usage(getattr(event, "usage", None), usage)
            case "message_stop":
                stop = _STOPS.get(reason, StopReason.UNSPECIFIED)
                if maybe_cut is not None and stop.is_chosen_by_model:
                    yield maybe_cut
                yield Finished(stop, usage, response_id, response_model)


def _grow(block: _GrowingBlock, delta: Any) -> tuple[str, str]:
    """Add the delta to its block. Return its text for the caller, and its hidden text."""
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


def _usage(reported: Any, before: Usage) -> Usage:
    """Return the totals so far. A count that is missing has not changed."""
    if reported is None:  # Some endpoints with this format send no counts.
        return before
    uncached = before.input - before.cache_read - before.cache_write
    read = _newest(reported.cache_read_input_tokens, before.cache_read)
    write = _newest(reported.cache_creation_input_tokens, before.cache_write)
    return Usage(
        input=_newest(reported.input_tokens, uncached) + read + write,
        output=_newest(reported.output_tokens, before.output),
        cache_read=read,
        cache_write=write,
    )


def _newest(count: int | None, before: int) -> int:
    return before if count is None else count
