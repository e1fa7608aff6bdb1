"""The worker looks after transcripts by itself: it drops what the blob store has, and finishes what was cut off."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from psycopg import AsyncConnection
from spawnmesh_devstack.ports import free_ports
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.process import start_process
from spawnmesh_transcript import tier_store
from spawnmesh_transcript.app import open_worker
from spawnmesh_transcript.settings import TranscriptSettings
from spawnmesh_transcript.store import Key
from spawnmesh_transcript.worker import Worker

from tests.contract.attachment_blob_fixtures import blobs
from tests.contract.serving import shared_settings
from tests.contract.transcript_cold import Cold, away, cold, count_rows, dropped, filled
from tests.contract.transcript_fixtures import Service, service, superuser, user
from tests.contract.transcript_tier import NO_TAIL, long_text, tier_service, tiered

__all__ = ["away", "blobs", "cold", "filled", "service", "superuser", "tier_service", "tiered"]

Superuser = AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True)
class Workers:
    """Opens workers on the database of the service."""

    service: Service
    blob_target: str
    keys: Path

    @asynccontextmanager
    async def open(self, *, delay_seconds: float = 0, blob_target: str = "", **more: Any) -> AsyncIterator[Worker]:
        settings = TranscriptSettings(
            **shared_settings("transcript", self.keys),
            database_url=self.service.dsn.app,
            attachment_blob_target=blob_target or self.blob_target,
            work_interval_seconds=0.001,
            cool_delay_seconds=delay_seconds,
            **more,
        )
        async with (
            start_process("transcript", settings) as process,
            open_worker(process, settings, asyncio.Event()) as worker,
        ):
            yield worker


@pytest.fixture
def workers(service: Service, cold: Cold, keys: Path) -> Workers:
    return Workers(service, cold.blobs.service.target, keys)


@pytest.fixture(autouse=True)
async def others_had_their_turn(cold: Cold, superuser: Superuser) -> AsyncIterator[None]:
    """Of the tenants of all tests before, of which there may be hundreds, none is worked for."""
    own = (cold.session.tenant_id,)
    await superuser.execute("update tenants set work_time = now() + interval '1 day' where tenant_id <> %s", own)
    yield
    await superuser.execute("update tenants set work_time = null where work_time > now()")


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with open_database(service.dsn.app, name="test", max_connections=2) as database:
        yield database


async def test_a_round_drops_what_is_no_longer_fresh(filled: Cold, workers: Workers, superuser: Superuser) -> None:
    before = await filled.readings()
    async with workers.open() as worker:
        await worker.work_once()
        assert list(await dropped(superuser, filled)) == [2, 4, 6, 8]
        assert await filled.readings() == before
        claim = await filled.session.acquire(2)
        await filled.converse(claim, long_text("new"))
        await worker.work_once()
        assert len(await dropped(superuser, filled)) == 4, "fresh"
        await filled.age(claim)
        await worker.work_once()
        assert len(await dropped(superuser, filled)) == 5


async def test_a_round_leaves_alone_what_is_not_wanted_or_not_yet(
    filled: Cold, workers: Workers, superuser: Superuser
) -> None:
    async with workers.open(delay_seconds=3600) as worker:
        await worker.work_once()
    assert not await dropped(superuser, filled)
    await filled.set_tier(2, is_on=False)
    async with workers.open() as worker:
        await worker.work_once()
        assert not await dropped(superuser, filled)
        await filled.set_tier(3, is_on=True)
        await worker.work_once()
    assert len(await dropped(superuser, filled)) == 4


async def test_two_workers_at_once_do_it_once(filled: Cold, workers: Workers, superuser: Superuser) -> None:
    others = [filled.to(filled.session.sibling()) for _ in range(2)]
    for other in others:
        await other.session.create()
        await other.fill()
    before = [await one.readings() for one in (filled, *others)]
    async with workers.open() as first, workers.open() as second:
        await asyncio.gather(first.work_once(), second.work_once())
        await asyncio.gather(first.work_once(), second.work_once())
    for one, readings in zip((filled, *others), before, strict=True):
        assert len(await dropped(superuser, one)) == 4
        assert await one.readings() == readings


async def test_a_round_beside_appends_loses_none_of_them(filled: Cold, workers: Workers, superuser: Superuser) -> None:
    claim = await filled.session.acquire(2)
    async with workers.open() as worker:

        async def work() -> None:
            for _ in range(5):
                await worker.work_once()

        async def append() -> None:
            for number in range(20):
                await filled.session.append([user(f"u{number} " + "word " * 2_000)])
                await filled.converse(claim, long_text(f"x{number}y"))

        await asyncio.gather(work(), append())
        await worker.work_once()
    entries = await filled.session.entries()
    assert [entry.seq for entry in entries] == list(range(1, 9 + 60 + 1))
    assert len(await dropped(superuser, filled)) > 10
    assert (await filled.readings())["chain"]


async def test_what_was_cut_off_is_put_and_what_leaves_is_given_up(
    filled: Cold, away: Cold, workers: Workers, superuser: Superuser, database: Database
) -> None:
    claim = await away.session.acquire(2)
    await away.converse(claim, long_text("late"))
    await away.age(claim)
    key = Key(filled.session.tenant_id, filled.session.session_id)
    assert await tier_store.warm_entries(database, key, {4: None}) == {4: 0}
    await filled.set_tier(2, is_on=False)
    async with workers.open() as worker:
        await worker.work_once()
        async with asyncio.timeout(10):
            while await count_rows(superuser, filled, "stubs") != 3 or await _waiting(superuser, filled):
                await asyncio.sleep(0.02)
    rows = await superuser.execute("select seq from payloads where tenant_id = %s", (filled.session.tenant_id,))
    assert {seq for (seq,) in await rows.fetchall()} == {2, 6, 8, 11}
    await filled.set_tier(3, is_on=True)
    assert {one.seq for one in (await filled.context(tail=NO_TAIL)).stubbed} == {6, 8, 11}
    await filled.blobs.collect()
    assert len(await asyncio.to_thread(filled.blobs.object_keys)) == 6


async def test_a_round_without_the_blob_store_is_made_up_for(
    filled: Cold, workers: Workers, superuser: Superuser
) -> None:
    async with workers.open(blob_target="127.0.0.1:1") as worker:
        await worker.work_once()
    assert not await dropped(superuser, filled)
    async with workers.open() as worker:
        await worker.work_once()
    assert len(await dropped(superuser, filled)) == 4


async def test_a_payload_that_was_changed_is_left_and_not_tried_in_every_round(
    filled: Cold, workers: Workers, superuser: Superuser
) -> None:
    rows = await superuser.execute(
        "select sha256 from payloads where tenant_id = %s and seq = 6", (filled.session.tenant_id,)
    )
    [(sha256,)] = await rows.fetchall()
    await asyncio.to_thread(filled.blobs.overwrite, sha256, b"x" * 12_000)
    (port,) = free_ports(1)
    async with workers.open(metrics_listen=f"127.0.0.1:{port}") as worker:
        for _ in range(3):
            await worker.work_once()
        text = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    shorter = await dropped(superuser, filled)
    assert list(shorter) == [2, 4, 8]
    metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(metrics["spawnmesh_transcript_tier_failures_total"]) == 1
    assert float(metrics["spawnmesh_transcript_cooled_entries_total"]) >= 3
    assert float(metrics["spawnmesh_transcript_cooled_size_bytes_total"]) >= sum(shorter.values())
    stored, logical = (float(metrics[f"spawnmesh_transcript_{what}_size_bytes"]) for what in ("stored", "logical"))
    assert sum(shorter.values()) <= logical - stored < logical
    assert filled.session.tenant_id not in text


async def test_the_process_works_until_it_is_told_to_stop(
    filled: Cold, service: Service, keys: Path, superuser: Superuser
) -> None:
    own = {
        "DATABASE_URL": service.dsn.app,
        "ATTACHMENT_BLOB_TARGET": filled.blobs.service.target,
        "JWKS_FILE": str(keys / "jwks.json"),
        "SIGNING_KEY_FILE": str(keys / "transcript.pem"),
        "WORK_INTERVAL_SECONDS": "0.2",
        "COOL_DELAY_SECONDS": "0",
        "LOG_LEVEL": "error",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spawnmesh_transcript", "worker",
        env={"PATH": os.environ["PATH"], **{f"TRANSCRIPT_{name}": value for name, value in own.items()}},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while len(await dropped(superuser, filled)) < 4:
                await asyncio.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    rows = await superuser.execute("select count(*) from _spawnmesh_worker where name = 'transcript-worker'")
    assert await rows.fetchall() == [(0,)], "it took its sign away"


async def _waiting(superuser: Superuser, cold: Cold) -> int:
    statement = "select count(*) from payloads where tenant_id = %s and (not is_stored or is_leaving)"
    [(count,)] = await (await superuser.execute(statement, (cold.session.tenant_id,))).fetchall()
    return int(count)
