"""The worker drops inline copies that the blob store has, and finishes interrupted work."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from spawnmesh_devstack.ports import free_ports
from spawnmesh_postgres.database import Database
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.store import tier as tier_store

from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Service
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import NO_TAIL, long_text
from tests.support.transcript.tier_sessions import TierSession, count_rows, dropped
from tests.support.transcript.workers import Workers

pytestmark = pytest.mark.usefixtures("only_tenant_with_work")


async def test_a_round_drops_stale_inline_copies(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
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


async def test_a_round_skips_tenants_without_the_tier(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
    await filled.set_tier(2, is_on=False)
    async with workers.open() as worker:
        await worker.work_once()
        assert not await dropped(superuser, filled)
        await filled.set_tier(3, is_on=True)
        await worker.work_once()
    assert len(await dropped(superuser, filled)) == 4


async def test_two_workers_at_once_drop_each_copy_once(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
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


async def test_a_round_beside_appends_loses_no_entry(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
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
    assert await filled.readings()


async def test_a_round_puts_interrupted_payloads_and_releases_reverted_ones(
    filled: TierSession, away: TierSession, workers: Workers, superuser: Superuser, database: Database
) -> None:
    claim = await away.session.acquire(2)
    await away.converse(claim, long_text("late"))
    await away.age(claim)
    key = Key(filled.session.tenant_id, filled.session.session_id)
    assert await tier_store.restore_inline_payloads(database, key, {4: None}) == {4: 0}
    await filled.set_tier(2, is_on=False)
    async with workers.open() as worker:
        await worker.work_once()
        async with asyncio.timeout(60):
            # Those of three results, and of one condensed message.
            while await count_rows(superuser, filled, "stubs") != 4 or await _waiting(superuser, filled):
                await asyncio.sleep(0.02)
    rows = await superuser.execute(
        "select seq from payloads where tenant_id = %s", (filled.session.tenant_id,)
    )
    assert {seq for (seq,) in await rows.fetchall()} == {2, 6, 8, 11}
    await filled.set_tier(3, is_on=True)
    assert {one.seq for one in (await filled.context(tail=NO_TAIL)).stubbed} == {6, 8, 11}
    await filled.blobs.collect()
    assert len(await asyncio.to_thread(filled.blobs.object_keys)) == 6


async def test_a_later_round_repairs_a_round_without_the_blob_store(
    filled: TierSession, workers: Workers, superuser: Superuser
) -> None:
    async with workers.open(blob_target="127.0.0.1:1") as worker:
        await worker.work_once()
    assert not await dropped(superuser, filled)
    async with workers.open() as worker:
        await worker.work_once()
    assert len(await dropped(superuser, filled)) == 4


async def test_a_changed_payload_is_left_and_not_tried_in_every_round(
    filled: TierSession, workers: Workers, superuser: Superuser
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
    assert float(metrics["spawnmesh_transcript_externalized_entries_total"]) >= 3
    assert float(metrics["spawnmesh_transcript_externalized_size_bytes_total"]) >= sum(shorter.values())
    stored, logical = (
        float(metrics[f"spawnmesh_transcript_{what}_size_bytes"]) for what in ("stored", "logical")
    )
    assert sum(shorter.values()) <= logical - stored < logical
    assert filled.session.tenant_id not in text


async def test_the_worker_process_runs_until_a_signal(
    filled: TierSession, service: Service, keys: Path, superuser: Superuser
) -> None:
    own = {
        "DATABASE_URL": service.dsn.app,
        "ATTACHMENT_BLOB_TARGET": filled.blobs.service.target,
        "JWKS_FILE": str(keys / "jwks.json"),
        "SIGNING_KEY_FILE": str(keys / "transcript.pem"),
        "WORK_INTERVAL_SECONDS": "0.2",
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
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    rows = await superuser.execute("select count(*) from _spawnmesh_worker where name = 'transcript-worker'")
    assert await rows.fetchall() == [(0,)], "it took its sign away"


async def _waiting(superuser: Superuser, tier_session: TierSession) -> int:
    statement = "select count(*) from payloads where tenant_id = %s and (not is_stored or is_releasing)"
    [(count,)] = await (await superuser.execute(statement, (tier_session.session.tenant_id,))).fetchall()
    return int(count)
