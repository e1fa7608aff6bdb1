"""Read the stream of Anthropic's messages."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import RawMessageStreamEvent

from spawnmesh_model_router.clients.providers.anthropic_request import REDACTED_THINKING
from spawnmesh_model_router.clients.providers.growing_call import GrowingCall
from spawnmesh_model_router.clients.providers.growing_thought import GrowingThought
from spawnmesh_model_router.domain.answer import (
    Finished,
    HiddenOutput,
    Piece,
    PieceStream,
    StopReason,
    TextPiece,
    Thought,
    Usage,
    hidden_output,
)

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
    call: GrowingCall | None = None
    signature: str = ""


@dataclass(slots=True)
class _OpenBlocks:
    """The blocks that are not complete.

    `newest` is the call that began last. `maybe_cut` is a call that was cut off if it is in the
    last block and the model did not end by itself.
    """

    blocks: dict[int, _GrowingBlock] = field(default_factory=dict)
    thought: GrowingThought = field(default_factory=GrowingThought)
    newest: GrowingCall | None = None
    maybe_cut: GrowingCall | None = None

    def start(self, index: int, start: Any) -> list[Piece]:
        """Begin a block. Return the pieces that are known now."""
        block = self.blocks[index] = _GrowingBlock(start)
        pieces = self.take_call(is_cut=False)
        match start.type:
            case "tool_use":
                self.newest = block.call = GrowingCall(index, start.id, start.name)
                pieces += block.call.grow("", is_newest=True)
            case "thinking":
                pieces += self.thought.grow(start.thinking)
            case "text" if start.text:
                pieces.append(TextPiece(start.text))
        return pieces

    def grow(self, index: int, delta: Any) -> list[Piece]:
        """Add the delta to its block. Return the pieces that show it, or hidden output."""
        block = self.blocks[index]
        match delta.type:
            case "text_delta":
                return [TextPiece(str(delta.text))] if delta.text else []
            case "thinking_delta":
                is_thought = block.start.type == "thinking"
                return (self.thought.grow if is_thought else hidden_output)(delta.thinking)
            case "input_json_delta":
                if block.call is None:
                    return hidden_output(delta.partial_json)
                return block.call.grow(delta.partial_json, is_newest=block.call is self.newest)
            case "signature_delta":
                block.signature = delta.signature
        return []

    def stop(self, index: int) -> list[Piece]:
        """Return the block that is complete now, behind a call that may have been cut off."""
        block, pieces = self.blocks.pop(index), self.take_call(is_cut=False)
        match block.start.type:
            case "thinking":
                pieces += self.thought.finish(block.signature or block.start.signature or "")
            case "redacted_thinking":
                pieces.append(Thought("", REDACTED_THINKING + block.start.data))
            case "tool_use":
                self.maybe_cut = block.call
                if block.call is not None and block.call.is_complete:
                    pieces += self.take_call(is_cut=False)
        return pieces

    def take_call(self, *, is_cut: bool) -> list[Piece]:
        """Take the call that may be cut off; nothing if it is."""
        call, self.maybe_cut = self.maybe_cut, None
        return [call.finish()] if call is not None and not is_cut else []


async def read_messages(events: AsyncIterator[RawMessageStreamEvent]) -> PieceStream:
    """Yield text, thoughts and calls in pieces as they arrive, and complete thoughts and calls.

    A last call that was cut off is dropped. A stream without an end yields no `Finished`.
    """
    opened = _OpenBlocks()
    reason = response_id = response_model = ""
    usage = Usage()
    async for event in events:
        pieces: list[Piece] = []
        match event.type:
            case "message_start":
                response_id, response_model = event.message.id, event.message.model
                usage = _usage(getattr(event.message, "usage", None), usage)
                pieces = [HiddenOutput(read=usage)]
            case "content_block_start":
                pieces = opened.start(event.index, event.content_block)
            case "content_block_delta":
                pieces = opened.grow(event.index, event.delta)
            case "content_block_stop":
                pieces = opened.stop(event.index)
            case "message_delta":
                reason = event.delta.stop_reason or reason
                usage = _usage(getattr(event, "usage", None), usage)
            case "message_stop":
                stop = _STOPS.get(reason, StopReason.UNSPECIFIED)
                pieces = opened.take_call(is_cut=not stop.is_chosen_by_model)
                # Some endpoints do not say where the last block ends.
                pieces += [*opened.thought.finish(), Finished(stop, usage, response_id, response_model)]
        for piece in pieces:
            yield piece


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
