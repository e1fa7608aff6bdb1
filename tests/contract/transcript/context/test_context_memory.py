"""The memory of contexts, forks and compactions of many large bodies is that of a few bodies."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.impersonation import use_token

from tests.support.transcript.bodies import assistant
from tests.support.transcript.compaction import (
    SHORT,
    Compacting,
    CompactionService,
    summary_of,
)
from tests.support.transcript.fixtures import Service
from tests.support.transcript.memory import MIB, highest_rss, own_process
from tests.support.transcript.tier_sessions import with_image

IMAGES = 14
IMAGE_BYTES = 6 * MIB
GROWTH_LIMIT = 64 * MIB  # One image is in memory a few times; all images are 84 MiB, all texts 71.


async def _warm(own: Service) -> None:
    """Wait until the process serves and has loaded its token vocabulary."""
    async with asyncio.timeout(60):
        while True:
            with suppress(MeshError):
                await own.session().create()
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _growth_limited(process: psutil.Process) -> AsyncIterator[None]:
    before = process.memory_info().rss
    done = asyncio.Event()
    watching = asyncio.ensure_future(highest_rss(process, done))
    try:
        yield
    finally:
        done.set()
        highest = await watching
    assert highest - before < GROWTH_LIMIT, f"grew by {(highest - before) // MIB} MiB"


@pytest.mark.timeout(180)
async def test_large_bodies_are_never_read_all_at_once(
    compacting: Compacting, compaction_service: CompactionService, keys: Path
) -> None:
    session = compacting.session
    claim = await session.acquire(1)
    for _ in range(IMAGES):
        await session.append([with_image("look", os.urandom(IMAGE_BYTES))])
        await session.append([assistant("seen")], claim=claim)
    peers = {
        "model_router_target": compaction_service.peers_target,
        "hook_target": compaction_service.peers_target,
    }
    async with own_process(session.service, keys, **peers) as (own, process):
        await _warm(own)
        mine = Compacting(replace(session, service=own), compacting.peers)
        async with _growth_limited(process):
            context = await mine.context(100_000)
            assert (len(context.entries), context.dropped_entry_count) == (3, 2 * IMAGES - 3)
            child = mine.session.sibling()
            assert (await child.create(fork_of=mine.session, max_token_count=100_000)).seq == 1 + 3
            compacted = await mine.compact(claim, tail=SHORT)
        assert summary_of(compacted.summary) == "The gist."
        assert compacted.summary.body.compaction.sources.entry_count == 2 * IMAGES - 4


@pytest.mark.timeout(120)
async def test_accompanying_texts_are_freed(service: Service, keys: Path) -> None:
    async with own_process(service, keys) as (own, process):
        await _warm(own)
        session = own.session()
        await session.create()

        async def assemble(number: int) -> int:
            texts = [f"{number} {part} " + "responsibilities " * 55_000 for part in range(10)]
            request = pb.AssembleContextRequest(
                session_id=session.session_id, token_budget=2_000_000_000, accompanying_texts=texts
            )
            with use_token(session.client_token()):
                context = await own.peer.unary(own.stub.AssembleContext, request, timeout_seconds=60)
            return context.accompanying_token_count

        assert await assemble(0) > 500_000
        async with _growth_limited(process):
            for number in range(1, 9):
                await assemble(number)
