"""Make the pieces of an answer safe to send, whatever the provider put in them."""

from dataclasses import astuple, replace
from typing import Any

from spawnmesh_model_router.domain.answer import (
    Finished,
    HiddenOutput,
    Piece,
    TextPiece,
    Thought,
    ToolCall,
    Usage,
    unreadable_tool_call,
)
from spawnmesh_model_router.domain.unicode import repair_surrogates, split_trailing_surrogate

_MAX_TOKENS = 2**31 - 1


class StreamSanitizer:
    """Sanitizes the pieces of one answer, in order."""

    def __init__(self) -> None:
        self._surrogate = ""

    def sanitize(self, piece: Piece) -> list[Piece]:
        """Return the piece in a form that can be sent; an empty list if only half a character is
        there.

        Raises ProviderFailed for a tool call without a tool name.
        """
        match piece:
            case TextPiece():
                return self._text(piece)
            case ToolCall():
                return [*self._flush(), _sanitize_call(piece)]
            case Thought():
                thought = Thought(repair_surrogates(piece.text), repair_surrogates(piece.signature))
                return [*self._flush(), thought]
            case Finished():
                return [*self._flush(), _sanitize_end(piece)]
            case HiddenOutput():
                read = _sanitize_usage(piece.read) if piece.read is not None else None
                return [HiddenOutput(piece.written_bytes, read)]

    def _text(self, piece: TextPiece) -> list[Piece]:
        if not self._surrogate and piece.text.isascii():
            return [piece]
        text, self._surrogate = split_trailing_surrogate(self._surrogate + piece.text)
        return [TextPiece(repair_surrogates(text))] if text else []

    def _flush(self) -> list[Piece]:
        surrogate, self._surrogate = self._surrogate, ""
        return [TextPiece(repair_surrogates(surrogate))] if surrogate else []


def _sanitize_call(call: ToolCall) -> ToolCall:
    if not call.name or not isinstance(call.name, str):
        raise unreadable_tool_call()
    return ToolCall(
        repair_surrogates(str(call.call_id)),
        repair_surrogates(call.name),
        repair_surrogates(call.block_json),
    )


def _sanitize_end(end: Finished) -> Finished:
    return replace(
        end,
        usage=_sanitize_usage(end.usage),
        response_id=repair_surrogates(str(end.response_id)),
        response_model=repair_surrogates(str(end.response_model)),
    )


def _sanitize_usage(usage: Usage) -> Usage:
    if all(type(count) is int and 0 <= count <= _MAX_TOKENS for count in astuple(usage)):
        return usage
    return Usage(*map(_sanitize_count, astuple(usage)))


def _sanitize_count(count: Any) -> int:
    """Return the count within bounds; 0 for a value that is no number."""
    try:
        return min(max(int(count), 0), _MAX_TOKENS)
    except (TypeError, ValueError, OverflowError):
        return 0
