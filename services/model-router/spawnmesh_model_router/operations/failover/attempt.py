"""Read the answer of one attempt."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_model_router.clients.providers.failure import to_provider_failure
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.clients.providers.stream_sanitizer import StreamSanitizer
from spawnmesh_model_router.domain.answer import Answer, HiddenOutput, PieceStream, TextPiece, ToolCall


async def read_attempt(
    pieces: PieceStream, answer: Answer, provider: str, request: ProviderRequest
) -> AsyncGenerator[TextPiece | ToolCall | HiddenOutput, None]:
    """Yield the output for the caller and the reports of hidden output, as they arrive.

    Adds every piece to `answer`, which is complete at the end. Raises ProviderFailed. Closing or
    cancelling the generator cancels the call, and is not a failure.
    """
    sanitizer = StreamSanitizer()
    async with aclosing(pieces):
        while True:
            try:
                sanitized = sanitizer.sanitize(await anext(pieces))
            except StopAsyncIteration:
                break
            except Exception as error:
                raise to_provider_failure(error, provider, request, has_output=answer.has_output) from error
            for piece in sanitized:
                answer.add(piece)
                if isinstance(piece, TextPiece | ToolCall | HiddenOutput):
                    yield piece
    answer.require_complete()
