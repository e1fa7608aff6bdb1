"""Verifications and compactions of one tenant leave a thread to others."""

import asyncio
from threading import Event

from spawnmesh_transcript.operations.bulk_threads import open_bulk_threads


async def test_a_tenant_has_one_thread_and_another_one_is_not_delayed() -> None:
    release, begun = Event(), []

    def work(number: int) -> int:
        begun.append(number)
        release.wait(60)
        return number

    async with open_bulk_threads() as threads, asyncio.timeout(60):
        calls = [asyncio.create_task(threads.run("hostile", lambda n=n: work(n))) for n in range(8)]
        try:
            assert await threads.run("other", lambda: "done") == "done"
            assert await threads.run("third", lambda: "done") == "done"
            assert len(begun) == 1
        finally:
            release.set()
        assert sorted(await asyncio.gather(*calls)) == list(range(8))


async def test_a_cancelled_call_keeps_its_place_until_its_thread_is_done() -> None:
    release, entered, begun = Event(), Event(), []

    def first() -> None:
        entered.set()
        release.wait(60)

    async with open_bulk_threads() as threads, asyncio.timeout(60):
        cancelled = asyncio.create_task(threads.run("hostile", first))
        await asyncio.to_thread(entered.wait, 60)
        cancelled.cancel()
        second = asyncio.create_task(threads.run("hostile", lambda: begun.append(2)))
        assert await threads.run("other", lambda: "done") == "done"
        assert begun == []
        release.set()
        await second
        assert cancelled.cancelled() or isinstance(
            (await asyncio.gather(cancelled, return_exceptions=True))[0], asyncio.CancelledError
        )
