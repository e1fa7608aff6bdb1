"""Events that arrive together are sent together, and text is never delayed."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest
from spawnmesh_model_router.domain.answer import CallPiece, TextPiece, ThoughtPiece
from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.events import AttemptStarted, Event
from spawnmesh_model_router.operations import event_batches
from spawnmesh_model_router.operations.event_batches import batch_events

STARTED = AttemptStarted(1, ModelRef("p", "m"))
WORD = TextPiece("word")


async def chain(*steps: Event | Callable[[], Awaitable[object]] | Exception) -> AsyncGenerator[Event, None]:
    for step in steps:
        if isinstance(step, Exception):
            raise step
        if callable(step):
            await step()
        else:
            yield step


async def test_events_that_arrive_together_are_one_batch() -> None:
    groups = [group async for group in batch_events(chain(STARTED, WORD, WORD))]
    assert groups == [[STARTED, WORD, WORD]]


async def test_an_attempt_is_sent_while_its_provider_thinks() -> None:
    thinks = asyncio.Event()
    async with asyncio.timeout(60), aclosing(batch_events(chain(STARTED, thinks.wait, WORD))) as groups:
        assert await anext(groups) == [STARTED]
        thinks.set()
        assert await anext(groups) == [WORD]


@pytest.mark.parametrize("piece", [WORD, ThoughtPiece("hm"), CallPiece("c", "read", "", True)])
async def test_a_piece_takes_with_it_what_is_held(piece: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_batches, "_DELAY_SECONDS", 3600.0)
    never = asyncio.Event()
    async with asyncio.timeout(60), aclosing(batch_events(chain(STARTED, piece, never.wait))) as groups:
        assert await anext(groups) == [STARTED, piece]


async def test_what_went_wrong_comes_behind_what_was_known() -> None:
    async with aclosing(batch_events(chain(STARTED, WORD, ValueError("broken")))) as groups:
        assert await anext(groups) == [STARTED, WORD]
        with pytest.raises(ValueError, match="broken"):
            await anext(groups)


async def test_closing_the_batches_closes_the_chain() -> None:
    left = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with aclosing(batch_events(chain(WORD, wait))) as groups:
        await anext(groups)
        assert not left.is_set()
    assert left.is_set()


async def test_it_is_not_read_far_ahead_of_who_is_slow() -> None:
    made = 0

    async def endless() -> AsyncGenerator[Event, None]:
        nonlocal made
        while True:
            made += 1
            yield WORD

    async with aclosing(batch_events(endless())) as groups:
        for taken in (64, 128, 192):
            assert len(await anext(groups)) == 64
            for _ in range(3):
                await asyncio.sleep(0)  # It has every chance to go on.
            assert made <= taken + 64
