"""Read the stream of OpenAI's responses."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from spawnmesh_model_router.clients.providers.chat_shapes import arguments_text
from spawnmesh_model_router.clients.providers.growing_call import GrowingCall
from spawnmesh_model_router.clients.providers.growing_thought import GrowingThought
from spawnmesh_model_router.clients.providers.responses_request import SEALED_REASONING
from spawnmesh_model_router.domain.answer import (
    Finished,
    Piece,
    PieceStream,
    StopReason,
    TextPiece,
    Usage,
    join_pieces,
)

_CUT_SHORT = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.REFUSAL}
_BETWEEN_PARTS = "\n\n"


@dataclass(slots=True)
class _Reading:
    """The answer so far.

    `thought_part` is the part of a thought that its newest text belongs to. `calls` are not
    complete, and `newest_call` is the one that began last. `maybe_cut` is a call that was cut off
    if no other item follows it and the model did not end by itself. `has_text` says whether the
    text of the current item came in parts.
    """

    thought: GrowingThought = field(default_factory=GrowingThought)
    thought_part: tuple[Any, ...] = ()
    calls: list[GrowingCall] = field(default_factory=list)
    newest_call: GrowingCall | None = None
    maybe_cut: GrowingCall | None = None
    has_text: bool = False
    called: bool = False
    refused: bool = False
    end: Finished | None = None

    def read(self, event: dict[str, Any]) -> list[Piece]:
        """Return the pieces that the event completes or shows."""
        match event.get("type"):
            case "response.output_text.delta":
                return self._say(event["delta"])
            case "response.refusal.delta":
                self.refused = True
                return self._say(event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._think(event)
            case "response.function_call_arguments.delta":
                call = self._call_at(event) or self._begin_call(event)
                return call.grow(event["delta"], is_newest=call is self.newest_call)
            case "response.output_item.added":
                return self._begin_item(event)
            case "response.output_item.done":
                return [*self._take_call(is_cut=False), *self._finish_item(event)]
            case "response.completed" | "response.incomplete":
                self.end = self._finished(event["response"])
                # Some endpoints do not say where the last item ends.
                return [
                    *self._take_call(is_cut=not self.end.stop.is_chosen_by_model),
                    *self.thought.finish(),
                ]
        return []

    def _say(self, text: str) -> list[Piece]:
        self.has_text = True
        return [TextPiece(text)] if text else []

    def _think(self, event: dict[str, Any]) -> list[Piece]:
        """Show a text of a thought. The complete thought joins its parts in the same way."""
        if not event["delta"]:
            return []
        index = event.get("summary_index", event.get("content_index"))
        before, self.thought_part = self.thought_part, (event["type"], event.get("output_index"), index)
        begins_part = not self.thought.is_empty and before != self.thought_part
        return self.thought.grow(_BETWEEN_PARTS * begins_part + event["delta"])

    def _begin_item(self, event: dict[str, Any]) -> list[Piece]:
        self.has_text = False
        if (event.get("item") or {}).get("type") != "function_call":
            return []
        return self._begin_call(event).grow("", is_newest=True)

    def _begin_call(self, event: dict[str, Any]) -> GrowingCall:
        item = event.get("item") or {}
        call = GrowingCall(event.get("output_index"), item.get("call_id") or "", item.get("name") or "")
        self.newest_call = call
        self.calls.append(call)
        return call

    def _call_at(self, event: dict[str, Any]) -> GrowingCall | None:
        """Return the call that the event belongs to; None if it did not begin.

        Some endpoints change the ids of items from event to event.
        """
        call_id = (event.get("item") or {}).get("call_id") or ""
        ids = ("", call_id) if call_id else ()
        return next(
            (
                call
                for call in reversed(self.calls)
                if call.index == event.get("output_index") and (not ids or call.provider_id in ids)
            ),
            None,
        )

    def _finish_item(self, event: dict[str, Any]) -> list[Piece]:
        """Return the pieces to yield once the item is complete."""
        item = event["item"]
        match item.get("type"):
            case "function_call":
                return self._finish_call(event, item)
            case "reasoning":
                text, shown = _thought_text(item), self.thought.text
                rest = text.removeprefix(shown) if text.startswith(shown) else ""
                return [*self.thought.grow(rest), *self.thought.finish(_signature(item))]
            case "message" if not self.has_text:  # Some endpoints send the item without deltas.
                parts = item.get("content") or []
                self.refused = self.refused or any(part.get("refusal") for part in parts)
                texts = (part.get("text") or part.get("refusal") or "" for part in parts)
                return [TextPiece(text) for text in texts if text]
        return []

    def _finish_call(self, event: dict[str, Any], item: dict[str, Any]) -> list[Piece]:
        self.called = True
        call = self._call_at(event)
        if call is None:
            call = GrowingCall(event.get("output_index"))
        else:
            self.calls.remove(call)
        call.provider_id = call.provider_id or item.get("call_id") or ""
        call.name = call.name or item.get("name") or ""
        pieces = call.end(arguments_text(item.get("arguments")), is_newest=call is self.newest_call)
        self.maybe_cut = call
        return [*pieces, *(self._take_call(is_cut=False) if call.is_complete else [])]

    def _take_call(self, *, is_cut: bool) -> list[Piece]:
        """Take the call that may be cut off; nothing if it is."""
        call, self.maybe_cut = self.maybe_cut, None
        return [call.finish()] if call is not None and not is_cut else []

    def _finished(self, response: dict[str, Any]) -> Finished:
        why = (response.get("incomplete_details") or {}).get("reason")
        stop = StopReason.TOOL_USE if self.called else StopReason.END
        if response.get("status") == "incomplete":
            stop = _CUT_SHORT.get(why or "", StopReason.UNSPECIFIED)
        reported = response.get("usage") or {}
        details = reported.get("output_tokens_details")
        return Finished(
            StopReason.REFUSAL if self.refused else stop,
            _usage(reported),
            response.get("id") or "",
            response.get("model") or "",
            (details.get("reasoning_tokens") or 0) if isinstance(details, dict) else 0,
        )


async def read_response(batches: AsyncIterator[list[Any]]) -> PieceStream:
    """Yield text, thoughts and calls in pieces as they arrive, and complete thoughts and calls.

    The pieces of one batch are joined. A stream without an end yields no `Finished`.
    """
    reading = _Reading()
    async for batch in batches:
        pieces = [piece for event in batch for piece in reading.read(event)]
        for piece in join_pieces(pieces):
            yield piece
    if reading.end is not None:
        yield reading.end


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


def _thought_text(item: dict[str, Any]) -> str:
    """Return the summary of the thought, or the thought itself if the endpoint sends it."""
    parts = item.get("summary") or item.get("content") or []
    return _BETWEEN_PARTS.join(part["text"] for part in parts if part.get("text"))


def _signature(item: dict[str, Any]) -> str:
    sealed = item.get("encrypted_content")
    return f"{SEALED_REASONING}{sealed}" if sealed else ""


def _usage(reported: dict[str, Any]) -> Usage:
    details = reported.get("input_tokens_details") or {}
    return Usage(
        input=reported.get("input_tokens") or 0,
        output=reported.get("output_tokens") or 0,
        cache_read=details.get("cached_tokens") or 0,
        cache_write=details.get("cache_write_tokens") or 0,
    )
