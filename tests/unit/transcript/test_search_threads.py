"""A cancelled search frees its thread."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations.search import find_entries, threads
from spawnmesh_transcript.operations.search.threads import WorkBudget, open_search_threads


async def test_cancelled_searches_leave_their_threads() -> None:
    started = threading.Semaphore(0)

    def search(budget: WorkBudget) -> None:
        started.release()
        while not budget.is_spent():
            time.sleep(0.001)

    async with open_search_threads() as search_threads:
        searches = []
        for _ in range(threads._THREADS):
            budget = WorkBudget(seconds=3_600)
            work = search_threads.run_in_thread(budget, lambda budget=budget: search(budget))
            searches.append(asyncio.create_task(work))
        for _ in searches:
            assert await asyncio.to_thread(started.acquire, timeout=60)
        for task in searches:
            task.cancel()
        for task in searches:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await search_threads.run_in_thread(WorkBudget(seconds=3_600), lambda: "found") == "found"


def test_a_cancelled_search_reads_no_further_text() -> None:
    budget = WorkBudget(seconds=3_600)
    entries: list[Any] = [SimpleNamespace(body=b"")] * 3
    read_count = 0

    def locate(_texts: Any) -> None:
        nonlocal read_count
        read_count += 1
        budget.is_abandoned = True

    assert find_entries._locate_hits(Key("t", "s"), entries, locate, 10, budget) == []
    assert read_count == 1
