"""Read the answer of one attempt."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from spawnmesh_model_router.clients.providers.history import AdaptedRequest
from spawnmesh_model_router.clients.providers.stream_sanitizer import StreamSanitizer
from spawnmesh_model_router.domain.answer import (
    Answer,
    CallPiece,
    Finished,
    HiddenOutput,
    Piece,
    PieceStream,
    ProviderFailed,
    TextPiece,
    Thought,
    ThoughtPiece,
    ToolCall,
    Usage,
    UsageBounds,
    written_bytes_of,
)

ToFailure = Callable[[Exception], Awaitable[ProviderFailed]]
StreamedPiece = TextPiece | ThoughtPiece | CallPiece | ToolCall | HiddenOutput


async def read_attempt(
    pieces: PieceStream, answer: Answer, to_failure: ToFailure, adapted: AdaptedRequest, bounds: UsageBounds
) -> AsyncGenerator[StreamedPiece, None]:
    """Yield the pieces for the caller and the reports of hidden output, as they arrive.

    Adds every piece to `answer`, which is complete at the end. Raises ProviderFailed. Closing or
    cancelling the generator cancels the call, and is not a failure. `to_failure` classifies any
    other error, and `bounds` limit the counts of tokens.
    """
    sanitizer, written_bytes = StreamSanitizer(), 0
    async with aclosing(pieces):
        while True:
            try:
                sanitized = sanitizer.sanitize(await anext(pieces))
            except StopAsyncIteration:
                break
            except Exception as error:
                raise await to_failure(error) from error
            for received in sanitized:
                written_bytes += written_bytes_of(received)
                piece = adapted.restore(_within(bounds, received, written_bytes))
                answer.add(piece)
                if not isinstance(piece, Thought | Finished):
                    yield piece
    answer.require_complete()


def _within(bounds: UsageBounds, piece: Piece, written_bytes: int) -> Piece:
    match piece:
        case Finished():
            return replace(piece, usage=bounds.apply(piece.usage, written_bytes))
        case HiddenOutput(read=Usage() as read):
            return replace(piece, read=bounds.apply(read, written_bytes))
    return piece
