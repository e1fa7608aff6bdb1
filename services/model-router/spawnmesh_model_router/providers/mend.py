"""Pieces of an answer as they can be sent on, whatever the provider made of them."""

from dataclasses import astuple, replace
from typing import Any

from spawnmesh_model_router.domain.unicode import cut_half, mended
from spawnmesh_model_router.providers.answer import (
    Call,
    Finished,
    Piece,
    TextPiece,
    Thought,
    Unseen,
    Usage,
    unreadable_call,
)

_MOST_TOKENS = 2**31 - 1


class Mender:
    """Mends the pieces of one answer, in their order."""

    def __init__(self) -> None:
        self._half = ""

    def mend(self, piece: Piece) -> list[Piece]:
        """The piece in a form that can be sent on: none while half a character is all there is of it.

        Raises ProviderFailed for a tool call that cannot be made, for it names no tool.
        """
        match piece:
            case TextPiece():
                return self._text(piece)
            case Call():
                return [*self._rest(), _call(piece)]
            case Thought():
                return [*self._rest(), Thought(mended(piece.text), mended(piece.signature))]
            case Finished():
                return [*self._rest(), _finished(piece)]
            case Unseen():
                return [Unseen(piece.written_bytes, _counted(piece.read) if piece.read is not None else None)]

    def _text(self, piece: TextPiece) -> list[Piece]:
        if not self._half and piece.text.isascii():
            return [piece]
        text, self._half = cut_half(self._half + piece.text)
        return [TextPiece(mended(text))] if text else []

    def _rest(self) -> list[Piece]:
        half, self._half = self._half, ""
        return [TextPiece(mended(half))] if half else []


def _call(call: Call) -> Call:
    if not call.name or not isinstance(call.name, str):
        raise unreadable_call()
    return Call(mended(str(call.call_id)), mended(call.name), mended(call.block_json))


def _finished(end: Finished) -> Finished:
    return replace(
        end,
        usage=_counted(end.usage),
        response_id=mended(str(end.response_id)),
        response_model=mended(str(end.response_model)),
    )


def _counted(usage: Usage) -> Usage:
    if all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in astuple(usage)):
        return usage
    return Usage(*map(_count, astuple(usage)))


def _count(said: Any) -> int:
    """What is no number of tokens counts nothing."""
    try:
        return min(max(int(said), 0), _MOST_TOKENS)
    except (TypeError, ValueError, OverflowError):
        return 0
