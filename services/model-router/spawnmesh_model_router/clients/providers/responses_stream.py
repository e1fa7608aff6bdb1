"""Read the stream of OpenAI's responses."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.clients.providers.chat_shapes import arguments_text
from spawnmesh_model_router.clients.providers.responses_request import SEALED_REASONING
from spawnmesh_model_router.domain.answer import (
    Finished,
    PieceStream,
    StopReason,
    TextPiece,
    Thought,
    ToolCall,
    Usage,
    hidden_output,
)
from spawnmesh_model_router.domain.tool_calls import is_complete, tool_call_block

_HIDDEN = (
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
)
_CUT_SHORT = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.REFUSAL}


@dataclass(slots=True)
class _Reading:
    """The answer so far.

    `texts` have not been yielded yet. `has_deltas` says whether the current item came in parts.
    `maybe_cut` is a call that was cut off if no other item follows it and the model did not end by
    itself.
    """

    texts: list[str] = field(default_factory=list)
    maybe_cut: ToolCall | None = None
    has_deltas: bool = False
    called: bool = False
    refused: bool = False

    def take_text(self) -> list[TextPiece]:
        """Take the text that has not been yielded yet."""
        text, self.texts = "".join(self.texts), []
        return [TextPiece(text)] if text else []

    def add_text(self, text: str) -> None:
        self.texts.append(text)
        self.has_deltas = True

    def finish_item(self, item: dict[str, Any]) -> list[TextPiece | Thought | ToolCall]:
        """Return the pieces to yield once the item is complete."""
        match item.get("type"):
            case "function_call":
                self.called = True
                call = _call(item)
                if not is_complete(arguments_text(item.get("arguments"))):
                    self.maybe_cut = call
                    return [*self.take_text()]
                return [*self.take_text(), call]
            case "reasoning":
                thought = _thought(item)
                return [*self.take_text(), thought] if thought.text or thought.signature else []
            case "message" if not self.has_deltas:  # Some endpoints send the item without deltas.
                self.refused = self.refused or any(part.get("refusal") for part in item.get("content") or [])
                self.texts += [
                    part.get("text") or part.get("refusal") or "" for part in item.get("content") or []
                ]
        return []

    def take_call(self, *, is_cut: bool) -> list[ToolCall]:
        """Take the call that may be cut off; nothing if it is."""
        maybe_cut, self.maybe_cut = self.maybe_cut, None
        return [maybe_cut] if maybe_cut is not None and not is_cut else []

    def finished(self, response: dict[str, Any]) -> Finished:
        why = (response.get("incomplete_details") or {}).get("reason")
        stop = StopReason.TOOL_USE if self.called else StopReason.END
        if response.get("status") == "incomplete":
            stop = _CUT_SHORT.get(why or "", StopReason.UNSPECIFIED)
        usage = _usage(response.get("usage") or {})
        return Finished(
            StopReason.REFUSAL if self.refused else stop,
            usage,
            response.get("id") or "",
            response.get("model") or "",
        )


async def read_response(batches: AsyncIterator[list[Any]]) -> PieceStream:
    """Yield text as it arrives, and thoughts and calls once they are complete.

    Texts of one batch become one piece. A stream without an end yields no `Finished`.
    """
    reading, end = _Reading(), None
    async for batch in batches:
        for event in batch:
            match event.get("type"):
                case "response.output_text.delta":
                    reading.add_text(event["delta"])
                case "response.refusal.delta":
                    reading.refused = True
                    reading.add_text(event["delta"])
                case kind if kind in _HIDDEN:
                    reading.has_deltas = True
                    for report in hidden_output(event["delta"]):
                        yield report
                case "response.output_item.added":
                    reading.has_deltas = False
                case "response.output_item.done":
                    for report in [] if reading.has_deltas else hidden_output(_hidden(event["item"])):
                        yield report
                    for piece in [*reading.take_call(is_cut=False), *reading.finish_item(event["item"])]:
                        yield piece
                case "response.completed" | "response.incomplete":
                    end = reading.finished(event["response"])
                    for call in reading.take_call(is_cut=not end.stop.is_chosen_by_model):
                        yield call
        for text in reading.take_text():
            yield text
    if end is not None:
        yield end


def ends(event: dict[str, Any]) -> bool:
    """Return whether the event is the last one. Some endpoints leave the stream open after it."""
    return event.get("type") in ("response.completed", "response.incomplete")


def error_in(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the error of an error event; None for any other event."""
    match event.get("type"):
        case "error":
            return dict(event.get("error") or event)
        case "response.failed":
            return dict(event["response"].get("error") or {"message": ""})
    return None


def _call(item: dict[str, Any]) -> ToolCall:
    call_id, name = item.get("call_id") or f"call_{secrets.token_hex(12)}", item.get("name") or ""
    return ToolCall(call_id, name, tool_call_block(call_id, name, arguments_text(item.get("arguments"))))


def _hidden(item: dict[str, Any]) -> str:
    """Return the text of the item that the caller does not see as it arrives."""
    match item.get("type"):
        case "function_call":
            return arguments_text(item.get("arguments"))
        case "reasoning":
            return _thought(item).text
    return ""


def _thought(item: dict[str, Any]) -> Thought:
    """Return the summary of the thought, or the thought itself if the endpoint sends it."""
    parts = item.get("summary") or item.get("content") or []
    sealed = item.get("encrypted_content")
    text = "\n\n".join(part["text"] for part in parts if part.get("text"))
    return Thought(text, f"{SEALED_REASONING}{sealed}" if sealed else "")


def _usage(reported: dict[str, Any]) -> Usage:
    details = reported.get("input_tokens_details") or {}
    return Usage(
        input=reported.get("input_tokens") or 0,
        output=reported.get("output_tokens") or 0,
        cache_read=details.get("cached_tokens") or 0,
        cache_write=details.get("cache_write_tokens") or 0,
    )
