"""Make the pieces of an answer safe to send, whatever the provider put in them."""

from dataclasses import astuple, replace
from typing import Any

from spawnmesh_model_router.domain.answer import (
    CallPiece,
    Finished,
    HiddenOutput,
    Piece,
    TextPiece,
    Thought,
    ThoughtPiece,
    ToolCall,
    Usage,
    unreadable_tool_call,
)
from spawnmesh_model_router.domain.unicode import repair_surrogates, split_trailing_surrogate

_MAX_TOKENS = 2**31 - 1


class _Channel:
    """One text that comes in pieces. Half a character at the end of a piece waits for the next."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, text: str) -> str:
        """Return the text that can be sent now."""
        if not self._half and text.isascii():
            return text
        text, self._half = split_trailing_surrogate(self._half + text)
        return repair_surrogates(text)

    def end(self) -> str:
        """Return what waits, and begin another text."""
        half, self._half = self._half, ""
        return repair_surrogates(half)


class StreamSanitizer:
    """Sanitizes the pieces of one answer, in order."""

    def __init__(self) -> None:
        self._text = _Channel()
        self._thought = _Channel()
        self._arguments = _Channel()

    def sanitize(self, piece: Piece) -> list[Piece]:
        """Return the piece in a form that can be sent; an empty list if only half a character is
        there.

        Raises ProviderFailed for a tool call without a tool name.
        """
        match piece:
            case TextPiece():
                return _text_pieces(self._text.add(piece.text))
            case ThoughtPiece():
                return _thought_pieces(self._thought.add(piece.text))
            case CallPiece():
                return self._call_pieces(piece)
            case ToolCall():
                return [*_text_pieces(self._text.end()), _sanitize_call(piece)]
            case Thought():
                thought = Thought(repair_surrogates(piece.text), repair_surrogates(piece.signature))
                ends = [*_text_pieces(self._text.end()), *_thought_pieces(self._thought.end())]
                return [*ends, thought]
            case Finished():
                return [*_text_pieces(self._text.end()), _sanitize_end(piece)]
            case HiddenOutput():
                read = _sanitize_usage(piece.read) if piece.read is not None else None
                return [HiddenOutput(piece.written_bytes, read)]

    def _call_pieces(self, piece: CallPiece) -> list[Piece]:
        if piece.begins_call:
            self._arguments.end()  # Half a character at the end of a call is no JSON.
        arguments = self._arguments.add(piece.arguments)
        return [replace(piece, arguments=arguments)] if arguments or piece.begins_call else []


def _text_pieces(text: str) -> list[Piece]:
    return [TextPiece(text)] if text else []


def _thought_pieces(text: str) -> list[Piece]:
    return [ThoughtPiece(text)] if text else []


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
        reasoning_tokens=_sanitize_count(end.reasoning_tokens),
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
