"""Reads the stream of OpenAI's responses."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.domain.calls import call_block, is_whole
from spawnmesh_model_router.providers.answer import Call, Finished, Pieces, Stop, TextPiece, Thought, Usage, unseen
from spawnmesh_model_router.providers.chat_shapes import arguments_text
from spawnmesh_model_router.providers.responses_request import SEALED_REASONING

_HIDDEN = (
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
)
_CUT_SHORT = {"max_output_tokens": Stop.LENGTH, "content_filter": Stop.REFUSAL}


@dataclass(slots=True)
class _Reading:
    """What is known of the answer so far. `said` is text that has not been handed on, `spoken` whether the item under way came in parts.
    `doubtful` is a call that was cut off if nothing follows it and the model did not end by itself."""

    said: list[str] = field(default_factory=list)
    doubtful: Call | None = None
    spoken: bool = False
    called: bool = False
    refused: bool = False

    def text(self) -> list[TextPiece]:
        """The text that has not been handed on, and is now."""
        said, self.said = "".join(self.said), []
        return [TextPiece(said)] if said else []

    def say(self, text: str) -> None:
        self.said.append(text)
        self.spoken = True

    def item(self, item: dict[str, Any]) -> list[TextPiece | Thought | Call]:
        """What goes on when the item is whole."""
        match item.get("type"):
            case "function_call":
                self.called = True
                call = _call(item)
                if not is_whole(arguments_text(item.get("arguments"))):
                    self.doubtful = call
                    return [*self.text()]
                return [*self.text(), call]
            case "reasoning":
                thought = _thought(item)
                return [*self.text(), thought] if thought.text or thought.signature else []
            case "message" if not self.spoken:  # Some endpoints say it all at once.
                self.refused = self.refused or any(part.get("refusal") for part in item.get("content") or [])
                self.said += [part.get("text") or part.get("refusal") or "" for part in item.get("content") or []]
        return []

    def settled(self, *, is_cut: bool) -> list[Call]:
        """The doubtful call, unless it is cut."""
        doubtful, self.doubtful = self.doubtful, None
        return [doubtful] if doubtful is not None and not is_cut else []

    def finished(self, response: dict[str, Any]) -> Finished:
        why = (response.get("incomplete_details") or {}).get("reason")
        stop = Stop.TOOL_USE if self.called else Stop.END
        if response.get("status") == "incomplete":
            stop = _CUT_SHORT.get(why or "", Stop.UNSPECIFIED)
        usage = _usage(response.get("usage") or {})
        return Finished(
            Stop.REFUSAL if self.refused else stop, usage, response.get("id") or "", response.get("model") or ""
        )


async def read_response(batches: AsyncIterator[list[Any]]) -> Pieces:
    """Text as it comes, in one piece where several came together; thoughts and calls when they are whole. No `Finished` for a stream that just
    ends."""
    reading, end = _Reading(), None
    async for batch in batches:
        for event in batch:
            match event.get("type"):
                case "response.output_text.delta":
                    reading.say(event["delta"])
                case "response.refusal.delta":
                    reading.refused = True
                    reading.say(event["delta"])
                case kind if kind in _HIDDEN:
                    reading.spoken = True
                    for report in unseen(event["delta"]):
                        yield report
                case "response.output_item.added":
                    reading.spoken = False
                case "response.output_item.done":
                    for report in [] if reading.spoken else unseen(_hidden(event["item"])):
                        yield report
                    for piece in [*reading.settled(is_cut=False), *reading.item(event["item"])]:
                        yield piece
                case "response.completed" | "response.incomplete":
                    end = reading.finished(event["response"])
                    for call in reading.settled(is_cut=not end.stop.is_models_own):
                        yield call
        for text in reading.text():
            yield text
    if end is not None:
        yield end


def ends(event: dict[str, Any]) -> bool:
    """Whether nothing follows the event, even where the endpoint leaves the stream open."""
    return event.get("type") in ("response.completed", "response.incomplete")


def error_in(event: dict[str, Any]) -> dict[str, Any] | None:
    """The error that an event stands for."""
    match event.get("type"):
        case "error":
            return dict(event.get("error") or event)
        case "response.failed":
            return dict(event["response"].get("error") or {"message": ""})
    return None


def _call(item: dict[str, Any]) -> Call:
    call_id, name = item.get("call_id") or f"call_{secrets.token_hex(12)}", item.get("name") or ""
    return Call(call_id, name, call_block(call_id, name, arguments_text(item.get("arguments"))))


def _hidden(item: dict[str, Any]) -> str:
    """What the item says that nobody is shown as it comes."""
    match item.get("type"):
        case "function_call":
            return arguments_text(item.get("arguments"))
        case "reasoning":
            return _thought(item).text
    return ""


def _thought(item: dict[str, Any]) -> Thought:
    """The summary, or the thought itself where the endpoint shows it."""
    parts = item.get("summary") or item.get("content") or []
    sealed = item.get("encrypted_content")
    text = "\n\n".join(part["text"] for part in parts if part.get("text"))
    return Thought(text, f"{SEALED_REASONING}{sealed}" if sealed else "")


def _usage(said: dict[str, Any]) -> Usage:
    details = said.get("input_tokens_details") or {}
    return Usage(
        input=said.get("input_tokens") or 0,
        output=said.get("output_tokens") or 0,
        cache_read=details.get("cached_tokens") or 0,
        cache_write=details.get("cache_write_tokens") or 0,
    )
