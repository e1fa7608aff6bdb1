"""A set is staged in one transaction that puts its objects: concurrent calls and failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import psycopg
import pytest
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import AttachmentSet, SetRequest, object_key
from spawnmesh_attachment_blob.domain.uploads import UploadRef
from spawnmesh_attachment_blob.operations.set_stager import SetStager
from spawnmesh_attachment_blob.store import blobs as blobs_store
from spawnmesh_attachment_blob.store import sets, usage
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.database import Connection

from tests.support.attachment_blob.fakes import BreakingDatabase, PausedPuts, waits_for_a_lock
from tests.support.attachment_blob.fixtures import Tenant, new_set_id, open_stager, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import upload
from tests.support.waiting import eventually

SESSION_ID = new_id(IdKind.SESSION)


def request_of(*contents: str, set_id: str = "") -> SetRequest:
    """Build a set with a file for each content. The content is also the file's name."""
    items = [InlineItem(content, content, Encoding.UTF8) for content in contents]
    return SetRequest(set_id or new_set_id(), SESSION_ID, items)


class Begun:
    """Stage a set that waits after some or all of its puts."""

    def __init__(self, stager: SetStager, objects: Any, staged: asyncio.Future[AttachmentSet]) -> None:
        self.stager = stager
        self.objects = objects
        self.staged = staged

    async def ends(self, *, fails: bool) -> None:
        self.objects.fails = fails
        self.objects.go_on.set()
        if fails:
            with pytest.raises(MeshError):
                await self.staged
        else:
            await self.staged


@asynccontextmanager
async def begun(
    tenant: Tenant, request: SetRequest, *, puts_before: int | None = None
) -> AsyncIterator[Begun]:
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        objects.puts_before = puts_before
        staged = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await objects.were_put.wait()
        yield Begun(stager, objects, staged)


@asynccontextmanager
async def another(tenant: Tenant) -> AsyncIterator[tuple[SetStager, Any]]:
    """Stage a set that does not wait, and yield its object store."""
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        objects.go_on.set()
        yield stager, objects


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("puts_before", [0, 1, 2])
async def test_ReleaseSet__while_the_objects_are_put(
    tenant: Tenant, postgres: Postgres, puts_before: int, fails: bool
) -> None:
    request = request_of("a", "b")
    async with begun(tenant, request, puts_before=puts_before) as first:
        assert await tenant.left() == (0, 0, puts_before)
        with refused(Reason.NOT_FOUND):
            await tenant.get(request.set_id)
        releasing = asyncio.ensure_future(tenant.release(request.set_id))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=fails)

        assert await releasing == (0 if fails else 2)

    assert await tenant.left() == (0, 0, 0)
    assert [row["state"] for row in await tenant.rows("sets")] == ["RELEASED"]


@pytest.mark.parametrize("fails", [False, True])
async def test_concurrent_stagings_of_the_same_set(tenant: Tenant, postgres: Postgres, fails: bool) -> None:
    request = request_of("a", "b")
    async with begun(tenant, request) as first, another(tenant) as (stager, objects):
        second = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=fails)

        answered = await second

    assert objects.put_hashes == ({file.sha256 for file in answered.files} if fails else set())
    assert [row["state"] for row in await tenant.rows("sets")] == ["STAGED"]
    assert await tenant.read(request.set_id, "b") == b"b"


async def test_concurrent_stagings_of_different_files_with_the_same_id(
    tenant: Tenant, postgres: Postgres
) -> None:
    request = request_of("a")
    async with begun(tenant, request) as first:
        second = asyncio.ensure_future(
            tenant.stage(text("a", "other"), set_id=request.set_id, session_id=SESSION_ID)
        )
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=False)

        with refused(Reason.ALREADY_EXISTS):
            await second

    assert await tenant.left() == (1, 1, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_concurrent_stagings_of_two_sets_with_the_same_new_bytes(
    tenant: Tenant, postgres: Postgres, fails: bool
) -> None:
    """The second set puts the bytes of the first, which is not committed.

    Deleting the objects of the first does not affect the second.
    """
    one, other = request_of("a", "shared"), request_of("shared", "b")
    async with begun(tenant, one) as first, another(tenant) as (stager, objects):
        second = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, other))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=fails)
        files = (await second).files

    assert objects.put_hashes == {file.sha256 for file in files if fails or file.name == "b"}
    assert await tenant.read(other.set_id, "shared") == b"shared"
    assert await tenant.left() == ((2, 2, 2) if fails else (4, 3, 3))
    await tenant.release(one.set_id)
    await tenant.release(other.set_id)
    assert await tenant.left() == (0, 0, 0)


async def test_stored_bytes_are_staged_concurrently_and_block_their_release(
    tenant: Tenant, postgres: Postgres
) -> None:
    stored = await tenant.stage(text("a", "stored"))
    request = request_of("stored", "new")
    async with begun(tenant, request) as first:
        again = await tenant.stage(text("b", "stored"))
        releasing = asyncio.gather(tenant.release(stored.set_id), tenant.release(again.set_id))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=False)

        assert await releasing == [0, 0]

    assert await tenant.read(request.set_id, "stored") == b"stored"
    assert await tenant.release(request.set_id) == 2


async def test_a_set_that_waited_for_new_bytes_does_not_block_others_that_stage_them(
    tenant: Tenant, postgres: Postgres
) -> None:
    async with begun(tenant, request_of("shared")) as first, open_stager(tenant.service, PausedPuts) as other:
        stager, objects = other
        second = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request_of("shared", "own")))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=False)
        await objects.were_put.wait()

        await tenant.stage(text("a", "shared"))

        assert not second.done()
        objects.go_on.set()
        await second


async def test_a_set_and_a_deletion_of_orphans_lock_blobs_in_the_same_order(
    tenant: Tenant, postgres: Postgres
) -> None:
    """The set waits for the bytes that sort last, with one blob inserted and one to be locked."""
    stored, new, awaited = sorted("abc", key=lambda content: sha256(content.encode()).hexdigest())
    await tenant.stage(text("a", stored))
    orphans = [object_key(sha256(content.encode()).hexdigest(), "orphan") for content in (stored, new)]
    async with begun(tenant, request_of(awaited)) as first, another(tenant) as (stager, _):
        staging = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request_of(stored, new, awaited)))
        await eventually(lambda: waits_for_a_lock(postgres))
        deleting = asyncio.ensure_future(stager._releaser.delete_orphans(tenant.tenant_id, orphans))
        await eventually(lambda: waits_for_a_lock(postgres, 2))
        await first.ends(fails=False)

        await staging
        assert await deleting == 2


async def test_marked_bytes_remain_marked_if_the_put_fails(
    tenant: Tenant,
) -> None:
    old = await tenant.stage(text("a", "same"))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await sets.release_set(connection, tenant.tenant_id, old.set_id)
        await blobs_store.mark_blobs_of_set(connection, tenant.tenant_id, old.set_id)

    async with begun(tenant, request_of("same")) as first:
        await first.ends(fails=True)

    assert [row["state"] for row in await tenant.rows("blobs")] == ["DELETING"]
    assert await tenant.release(old.set_id) == 1
    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("is_committed", [False, True])
async def test_staging_with_a_connection_lost_at_the_commit(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The caller does not know the result. It deletes the objects that have no row."""
    database = BreakingDatabase(tenant.service.database)
    database.is_lost_behind = is_committed
    commit = usage.commit_with_usage

    async def lost_before(connection: Connection, tenant_id: str, **added: int) -> None:
        monkeypatch.setattr(usage, "commit_with_usage", commit)
        await connection.close()
        await commit(connection, tenant_id, **added)

    if not is_committed:
        monkeypatch.setattr(usage, "commit_with_usage", lost_before)
    request = request_of("a", "b")
    async with open_stager(tenant.service, database=database) as (stager, _):
        with pytest.raises(psycopg.OperationalError):
            await stager.stage_set(tenant.tenant_id, request)

        assert await tenant.left() == ((2, 2, 2) if is_committed else (0, 0, 0))
        assert (await stager.stage_set(tenant.tenant_id, request)).set_id == request.set_id

    assert await tenant.read(request.set_id, "a") == b"a"
    assert await tenant.release(request.set_id) == 2


async def test_staging_of_a_set_that_was_released_meanwhile(tenant: Tenant) -> None:
    database, request = BreakingDatabase(tenant.service.database), request_of("a")
    database.meanwhile = lambda: tenant.release(request.set_id)
    async with open_stager(tenant.service, PausedPuts, database) as (stager, objects):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.ATTACHMENT_SET_STATE
    assert objects.put_hashes == set()
    assert await tenant.left() == (0, 0, 0)


async def test_staging_under_a_policy_that_changed_meanwhile(tenant: Tenant) -> None:
    database, request = BreakingDatabase(tenant.service.database), request_of("a", "b")
    database.meanwhile = lambda: tenant.prepare(2, max_file_count=1)
    async with open_stager(tenant.service, database=database) as (stager, _):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED
    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("state", ["DELETING", "gone"])
async def test_staging_of_an_upload_whose_bytes_went_meanwhile(tenant: Tenant, state: str) -> None:
    uploaded = await upload(tenant, b"uploaded")

    async def goes() -> None:
        async with tenant.service.database.transaction(tenant.tenant_id) as connection:
            await connection.execute("delete from uploads")
            await connection.execute(
                "delete from blobs" if state == "gone" else "update blobs set state = 'DELETING'"
            )

    database = BreakingDatabase(tenant.service.database)
    database.meanwhile = goes
    items = [InlineItem("a", "inline", Encoding.UTF8)]
    request = SetRequest(new_set_id(), SESSION_ID, items, [UploadRef(uploaded.upload_id, "b")])
    async with open_stager(tenant.service, PausedPuts, database) as (stager, objects):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.NOT_FOUND
    assert objects.put_hashes == set()
    assert (await tenant.rows("sets"), await tenant.rows("set_files")) == ([], [])
    await tenant.recount()


async def test_a_staging_that_waits_for_the_same_bytes_can_be_cancelled(
    tenant: Tenant, postgres: Postgres
) -> None:
    async with begun(tenant, request_of("same")) as first, another(tenant) as (stager, objects):
        second = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request_of("same")))
        await eventually(lambda: waits_for_a_lock(postgres))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not await waits_for_a_lock(postgres)
        await first.ends(fails=False)

    assert objects.put_hashes == set()
    assert len(await tenant.rows("sets")) == 1
    assert await tenant.left() == (1, 1, 1)
