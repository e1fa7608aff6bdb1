"""Drafts of answers: what is written of them, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spawnmesh.model_router.v1.model_router_service_pb2 import AttemptStarted, GenerationEvent, TextDelta
from spawnmesh.transcript.v1.live_service_pb2 import WriteDraftRequest, WriteDraftResponse
from spawnmesh.transcript.v1.transcript_service_pb2 import WriterClaim
from spawnmesh_client.drafts import Drafts

from tests.support.waiting import eventually

STARTED = GenerationEvent(attempt_started=AttemptStarted(model="p/m"))


def said(text: str) -> GenerationEvent:
    return GenerationEvent(text_delta=TextDelta(text=text))


@asynccontextmanager
async def followed(drafts: Drafts) -> AsyncIterator[list[WriteDraftRequest]]:
    """Follow the drafts during the block; yield the calls."""
    calls: list[WriteDraftRequest] = []

    async def write(request: WriteDraftRequest) -> WriteDraftResponse:
        calls.append(request)
        size = sum(len(piece.text) for piece in request.pieces)
        return WriteDraftResponse(end_offset=request.offset + size, accepts_more=True)

    following = asyncio.create_task(drafts.follow(write, "ses", WriterClaim(run_id="run", epoch=1)))
    try:
        yield calls
    finally:
        drafts.close()
        await following


async def test_an_answer_that_is_complete_at_once_has_no_draft() -> None:
    drafts = Drafts()
    async with followed(drafts) as calls:
        for _ in range(2):
            with drafts.writing(3) as spoken:
                spoken.take(STARTED)
                spoken.take(said("Complete."))
        with drafts.writing(5) as spoken:
            spoken.take(STARTED)
            spoken.take(said("Slow"))
            await eventually(lambda: calls)
    assert [(call.number, call.after_seq, call.pieces[0].text) for call in calls] == [(1, 5, "Slow")]


async def test_a_draft_has_what_was_said_before_its_first_call() -> None:
    drafts = Drafts()
    async with followed(drafts) as calls:
        with drafts.writing(3) as spoken:
            spoken.take(STARTED)
            spoken.take(said("One, "))
            spoken.take(said("two."))
            await eventually(lambda: calls)
    assert "".join(piece.text for piece in calls[0].pieces) == "One, two."
