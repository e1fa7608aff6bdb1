"""Watchers that are at one position share a read, and none depends on another one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import open_database
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy
from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.entries import StoredEntry
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.operations import live_reads
from spawnmesh_transcript.operations.live_reads import LivePage, LivePosition, LiveReads

from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Session
from tests.support.waiting import eventually

WATCHERS = 20
FIRST: ContextVar[str] = ContextVar("FIRST", default="")


@dataclass
class Rehydration:
    """Holds the entries of each read until the test opens the gate."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0
    running: int = 0
    most: int = 0
    contexts: set[str] = field(default_factory=set)

    async def __call__(
        self, _database: Any, _blobs: Any, _key: Key, entries: Sequence[StoredEntry]
    ) -> list[StoredEntry]:
        self.count += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.contexts.add(FIRST.get())
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return list(entries)


@pytest.fixture
def rehydration(monkeypatch: pytest.MonkeyPatch) -> Rehydration:
    held = Rehydration()
    monkeypatch.setattr(live_reads, "rehydrate_entries", held)
    return held


@pytest.fixture
async def reads(session: Session) -> AsyncIterator[LiveReads]:
    """Reads of which a tenant has two at a time."""
    async with open_database(session.service.dsn.app, name="reads", max_connections=4) as database:
        limit = FairLimiter(LimiterPolicy("reads", "", 4))
        opened = LiveReads(database, BlobStore(None), limit)
        yield opened
        await opened.finish()


def position(session: Session, seq: int = 0) -> LivePosition:
    return LivePosition(Key(session.tenant_id, session.session_id), seq, None, 0)


async def test_watchers_at_one_position_share_a_read_without_the_context_of_the_first(
    session: Session, reads: LiveReads, rehydration: Rehydration
) -> None:
    FIRST.set("its deadline")
    watching = [asyncio.create_task(reads.read(position(session))) for _ in range(WATCHERS)]
    await eventually(lambda: rehydration.count)
    watching[0].cancel()
    # A watcher that comes after the read has begun gets a page of its own.
    late = asyncio.create_task(reads.read(position(session)))
    await eventually(lambda: rehydration.count == 2)
    await session.append([user("news")])
    latest = asyncio.create_task(reads.read(position(session)))
    rehydration.gate.set()
    ended = await asyncio.gather(*watching, late, latest, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    pages = [page for page in ended if isinstance(page, LivePage)]
    assert [len(page.entries) for page in pages] == [1] * WATCHERS + [2]
    assert (rehydration.count, rehydration.contexts) == (3, {""})


async def test_reads_of_a_tenant_have_its_share_until_their_bodies_are_complete(
    session: Session, reads: LiveReads, rehydration: Rehydration
) -> None:
    positions = [position(session, seq) for seq in range(WATCHERS)]
    watching = [asyncio.create_task(reads.read(one)) for one in positions]
    await eventually(lambda: rehydration.running == 2)
    other = session.service.session()
    await other.create()
    passing = asyncio.create_task(reads.read(position(other)))
    await eventually(lambda: rehydration.running == 3)
    rehydration.gate.set()
    await asyncio.gather(*watching, passing)
    assert (rehydration.count, rehydration.most) == (WATCHERS + 1, 3)


async def test_an_error_is_that_of_all_who_asked(session: Session, reads: LiveReads) -> None:
    unknown = LivePosition(Key(session.tenant_id, "ses_unknown"), 0, None, 0)
    ended = await asyncio.gather(*(reads.read(unknown) for _ in range(3)), return_exceptions=True)
    assert [isinstance(one, MeshError) and one.reason for one in ended] == [Reason.NOT_FOUND] * 3
    assert (await reads.read(position(session))).head.seq == 1
