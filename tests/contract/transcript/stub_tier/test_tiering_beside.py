"""TierTranscript beside concurrent moves, reads, writes and deletions."""

import asyncio
from typing import Any

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier_sessions import (
    APPLY,
    DRY_RUN,
    PICTURE,
    REVERT,
    TierSession,
    count_rows,
    dropped,
    nothing_is_lost,
    with_image,
)


async def test_TierTranscript__several_calls_at_once_move_each_entry_once(
    old: TierSession, superuser: Superuser
) -> None:
    planned = await old.tier(DRY_RUN)
    before = await old.readings()
    done = await asyncio.gather(*(old.tier(APPLY) for _ in range(4)))
    assert sum(one.get("cooled_entry_count", 0) for one in done) == 4
    assert sum(one.get("cooled_bytes", 0) for one in done) == planned["cooled_bytes"]
    assert not any("failed_entry_count" in one for one in done)
    assert await count_rows(superuser, old, "payloads") == 6
    assert (await old.readings())["entries"] == before["entries"]


async def test_TierTranscript__apply_and_revert_at_once_beside_readers(
    filled: TierSession, superuser: Superuser
) -> None:
    before = (await filled.readings())["entries"]
    over = asyncio.Event()

    async def read() -> int:
        count = 0
        while not over.is_set():
            entries = await filled.session.entries()
            assert [entry.SerializeToString(deterministic=True) for entry in entries] == before
            count += 1
        return count

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        for _ in range(6):
            await asyncio.gather(filled.tier(APPLY), filled.tier(REVERT))
        over.set()
    assert reading.result() > 5
    await nothing_is_lost(filled, superuser, before)
    await filled.tier(REVERT)
    assert await asyncio.to_thread(filled.blobs.object_keys) == []
    assert await dropped(superuser, filled) == {}


async def test_TierTranscript__beside_appends_loses_no_entry(old: TierSession, superuser: Superuser) -> None:
    claim = await old.session.acquire(2)

    async def append() -> None:
        for number in range(25):
            await old.session.append([user(f"u{number}"), with_image(f"i{number}", PICTURE)])
            await old.session.append([assistant(f"a{number}")], claim=claim)

    await asyncio.gather(append(), *(old.tier(action) for action in (APPLY, APPLY, REVERT, APPLY)))
    entries = await old.session.entries()
    assert [entry.seq for entry in entries] == list(range(1, 9 + 75 + 1))
    before = [entry.SerializeToString(deterministic=True) for entry in entries]
    async with asyncio.timeout(60):
        while (await old.tier(APPLY)).get("failed_entry_count"):
            pass
    await nothing_is_lost(old, superuser, before)


@pytest.mark.parametrize("action", [APPLY, REVERT])
async def test_TierTranscript__beside_a_deletion_leaves_nothing(
    old: TierSession, superuser: Superuser, action: Any
) -> None:
    if action == REVERT:
        await old.tier(APPLY)
    done = await asyncio.gather(old.tier(action), old.session.delete(), return_exceptions=True)
    assert {error.reason for error in done if isinstance(error, MeshError)} <= {Reason.NOT_FOUND}
    await old.session.delete()
    assert await count_rows(superuser, old, "payloads") == await count_rows(superuser, old, "stubs") == 0
    await old.blobs.collect()
    assert await asyncio.to_thread(old.blobs.object_keys) == []


async def test_TierTranscript__beside_a_purge_leaves_nothing(old: TierSession, superuser: Superuser) -> None:
    async def purge() -> None:
        while not (await old.session.purge_tenant()).done:
            pass

    done = await asyncio.gather(old.tier(APPLY), purge(), return_exceptions=True)
    assert {error.reason for error in done if isinstance(error, MeshError)} <= {
        Reason.NOT_FOUND,
        Reason.TIER_DISABLED,
        Reason.UNKNOWN_TENANT,
    }
    for table in ("payloads", "stubs", "entries", "transcripts"):
        assert await count_rows(superuser, old, table) == 0
