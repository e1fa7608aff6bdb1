"""ReleaseSet, and concurrent calls that store and release the same bytes or the same set."""

import asyncio
import contextlib
import random

import pytest
from spawnmesh_attachment_blob.domain.items import StoredFile
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.store import blobs as blobs_store
from spawnmesh_attachment_blob.store import sets
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres

from tests.support.attachment_blob.fakes import FILES, Killed, KilledAfterPut, PausedPuts, waits_for_a_lock
from tests.support.attachment_blob.fixtures import (
    BlobService,
    Tenant,
    new_set_id,
    open_stager,
    refused,
    stage_within,
)
from tests.support.attachment_blob.inline import text
from tests.support.waiting import eventually


async def test_ReleaseSet__deletes_objects_before_it_returns(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"), text("b", "y"), text("c", "x"))

    assert await tenant.release(staged.set_id) == 2

    assert await tenant.left() == (0, 0, 0)
    assert await tenant.release(staged.set_id) == 0
    assert [row["state"] for row in await tenant.rows("sets")] == ["RELEASED"]


async def test_ReleaseSet__shared_bytes_survive_until_the_last_reference(tenant: Tenant) -> None:
    first = await tenant.stage(text("a", "shared"), text("b", "own"))
    second = await tenant.stage(text("c", "shared"))
    await tenant.attach(second.set_id)

    assert await tenant.release(first.set_id) == 1
    assert await tenant.read(second.set_id, "c") == b"shared"
    assert await tenant.release(second.set_id) == 1
    assert await tenant.left() == (0, 0, 0)


async def test_ReleaseSet__unknown_set_cannot_be_staged_later(tenant: Tenant) -> None:
    set_id = new_set_id()
    assert await tenant.release(set_id) == 0

    for _ in range(2):
        with refused(Reason.ATTACHMENT_SET_STATE, set_id=set_id, state="RELEASED"):
            await tenant.stage(text("a", "x"), set_id=set_id)
    with refused(Reason.ATTACHMENT_SET_STATE):
        await tenant.attach(set_id)
    assert await tenant.left() == (0, 0, 0)


async def test_ReleaseSet__tenant_not_prepared(blobs: BlobService) -> None:
    assert await blobs.tenant().release(new_set_id()) == 0


async def test_StageSet__waits_for_a_deletion_of_the_same_bytes_and_puts_them_again(
    tenant: Tenant, postgres: Postgres
) -> None:
    old = await tenant.stage(text("a", "same"))
    sha256 = old.files[0].sha256
    database = tenant.service.database
    async with database.transaction(tenant.tenant_id) as connection:
        await sets.release_set(connection, tenant.tenant_id, old.set_id)
        await blobs_store.mark_blobs_of_set(connection, tenant.tenant_id, old.set_id)
    async with database.transaction(tenant.tenant_id) as connection:
        condemned = await blobs_store.lock_marked_blobs_of_set(connection, tenant.tenant_id, old.set_id)
        assert [blob.sha256 for blob in condemned] == [sha256]
        staging = asyncio.ensure_future(tenant.stage(text("b", "same")))
        await eventually(lambda: waits_for_a_lock(postgres))
        assert not staging.done()
        tenant.lose(sha256)
        await blobs_store.delete_blobs(connection, tenant.tenant_id, [sha256])

    new = await staging

    assert await tenant.read(new.set_id, "b") == b"same"
    assert await tenant.release(old.set_id) == 0
    assert await tenant.read(new.set_id, "b") == b"same"


async def test_StageSet__stores_bytes_that_are_marked_for_deletion_again(tenant: Tenant) -> None:
    old = await tenant.stage(text("a", "same"))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await sets.release_set(connection, tenant.tenant_id, old.set_id)
        await blobs_store.mark_blobs_of_set(connection, tenant.tenant_id, old.set_id)
    # A release that was killed before it deleted the blob's row leaves this state.
    tenant.lose(old.files[0].sha256)

    new = await tenant.stage(text("b", "same"))

    assert await tenant.release(old.set_id) == 0
    assert await tenant.read(new.set_id, "b") == b"same"


async def test_a_waiting_deletion_keeps_bytes_that_were_stored_again(
    tenant: Tenant, postgres: Postgres
) -> None:
    old = await tenant.stage(text("a", "same"))
    database, tenant_id = tenant.service.database, tenant.tenant_id
    async with database.transaction(tenant_id) as connection:
        await sets.release_set(connection, tenant_id, old.set_id)
        await blobs_store.mark_blobs_of_set(connection, tenant_id, old.set_id)

    async def blobs_to_delete() -> list[blobs_store.MarkedBlob]:
        async with database.transaction(tenant_id) as connection:
            return await blobs_store.lock_marked_blobs_of_set(connection, tenant_id, old.set_id)

    async with database.transaction(tenant_id) as connection:
        sha256 = old.files[0].sha256
        assert await stage_within(connection, tenant_id, StoredFile("b", 4, sha256, "")) == {sha256}
        deleting = asyncio.ensure_future(blobs_to_delete())
        await eventually(lambda: waits_for_a_lock(postgres))

    assert await deleting == []
    await tenant.recount()


async def test_ReleaseSet__one_of_two_concurrent_releases_deletes_the_bytes(tenant: Tenant) -> None:
    sets = [await tenant.stage(text("a", "same"), text("b", f"own {n}")) for n in range(6)]

    counts = await asyncio.gather(*(tenant.release(staged.set_id) for staged in sets))

    assert sum(counts) == 7
    assert await tenant.left() == (0, 0, 0)


async def test_twenty_concurrent_sets_of_the_same_bytes(tenant: Tenant) -> None:
    rng = random.Random(7)
    contents = ["one", "two", "three"]

    async def come_and_go(keep: bool) -> str:
        order = rng.sample(contents, 3)
        staged = await tenant.stage(*(text(f"{content}.txt", content) for content in order))
        for content in order:
            assert await tenant.read(staged.set_id, f"{content}.txt") == content.encode()
        if not keep:
            await tenant.release(staged.set_id)
        return staged.set_id

    for last in (True, False):
        set_ids = await asyncio.gather(*(come_and_go(keep=last and n % 5 == 0) for n in range(20)))
        for set_id in set_ids[::5] if last else []:
            for content in contents:
                assert await tenant.read(set_id, f"{content}.txt") == content.encode()
        assert len(tenant.object_keys()) == len(await tenant.rows("blobs"))
        for set_id in set_ids:
            await tenant.release(set_id)
        assert await tenant.left() == (0, 0, 0)


async def test_one_set_staged_and_released_concurrently_ends_released(tenant: Tenant) -> None:
    for _ in range(10):
        set_id, session_id = new_set_id(), new_id(IdKind.SESSION)
        calls = [tenant.stage(text("a", "x"), set_id=set_id, session_id=session_id) for _ in range(3)]
        results = await asyncio.gather(*calls, tenant.release(set_id), return_exceptions=True)

        assert isinstance(results[-1], int)
        assert await tenant.left() == (0, 0, 0)
        with refused(Reason.ATTACHMENT_SET_STATE):
            await tenant.stage(text("a", "x"), set_id=set_id, session_id=session_id)


async def test_ReleaseSet__waits_for_the_last_put_of_the_same_set(tenant: Tenant, postgres: Postgres) -> None:
    set_id = new_set_id()
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        staged = asyncio.ensure_future(
            stager.stage_set(tenant.tenant_id, SetRequest(set_id, new_id(IdKind.SESSION), FILES))
        )
        await objects.were_put.wait()
        assert len(tenant.object_keys()) == 2
        with refused(Reason.NOT_FOUND):
            await tenant.get(set_id)
        releasing = asyncio.ensure_future(tenant.release(set_id))
        await eventually(lambda: waits_for_a_lock(postgres))
        objects.go_on.set()
        await staged

        assert await releasing == 2

    assert await tenant.left() == (0, 0, 0)


async def test_a_cancelled_staging_finishes_its_puts_before_a_release(tenant: Tenant) -> None:
    set_id = new_set_id()
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        staged = asyncio.ensure_future(
            stager.stage_set(tenant.tenant_id, SetRequest(set_id, new_id(IdKind.SESSION), FILES))
        )
        await objects.were_put.wait()
        staged.cancel()
        objects.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await staged

    assert [row["state"] for row in await tenant.rows("sets")] == ["STAGED"]
    assert await tenant.release(set_id) == 2


async def killed_after_put(tenant: Tenant, set_id: str, session_id: str) -> None:
    async with open_stager(tenant.service, KilledAfterPut) as (stager, _):
        with contextlib.suppress(Killed):
            await stager.stage_set(tenant.tenant_id, SetRequest(set_id, session_id, FILES))
    assert await tenant.left() == (0, 0, 2)


async def test_ReleaseSet__after_a_staging_killed_between_put_and_commit(tenant: Tenant) -> None:
    set_id = new_set_id()
    await killed_after_put(tenant, set_id, new_id(IdKind.SESSION))

    with refused(Reason.NOT_FOUND):
        await tenant.get(set_id)
    assert await tenant.release(set_id) == 0
    with refused(Reason.ATTACHMENT_SET_STATE):
        await tenant.stage(text("a", "A"), set_id=set_id)


async def test_StageSet__after_a_staging_killed_between_put_and_commit(tenant: Tenant) -> None:
    set_id, session_id = new_set_id(), new_id(IdKind.SESSION)
    await killed_after_put(tenant, set_id, session_id)

    await tenant.stage(text("a", "A", ""), text("b", "B", ""), set_id=set_id, session_id=session_id)

    assert await tenant.read(set_id, "b") == b"B"
    assert await tenant.release(set_id) == 2
    assert await tenant.left() == (0, 0, 2)
