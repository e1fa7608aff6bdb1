"""One try of one candidate."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spawnmesh_model_router.providers.answer import Answer, Call, Pieces, TextPiece, Unseen
from spawnmesh_model_router.providers.failure import failed_call
from spawnmesh_model_router.providers.mend import Mender
from spawnmesh_model_router.providers.question import Question


async def attempt(
    pieces: Pieces, answer: Answer, provider: str, question: Question
) -> AsyncGenerator[TextPiece | Call | Unseen, None]:
    """What the caller is shown of the provider's answer to the question, as it comes, and what it uses up meanwhile; `answer` grows with it and
    is whole at the end.

    Raises ProviderFailed. Closing the generator, or cancelling it, cancels the call and is no failure.
    """
    mender = Mender()
    async with aclosing(pieces):
        while True:
            try:
                whole = mender.mend(await anext(pieces))
            except StopAsyncIteration:
                break
            except Exception as error:
                raise failed_call(error, provider, question, has_output=answer.has_output) from error
            for piece in whole:
                answer.add(piece)
                if isinstance(piece, TextPiece | Call | Unseen):
                    yield piece
    answer.require_whole()
