"""A set is staged in one transaction, and its objects are put inside of it: who meets it before its commit, and what is left without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from spawnmesh_attachment_blob import store
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import AttachmentSet
from spawnmesh_attachment_blob.domain.uploads import UploadRef
from spawnmesh_attachment_blob.staging import SetRequest, Staging
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres

from tests.contract.attachment_blob_fixtures import Tenant, blobs, new_set_id, open_staging, refused, tenant, text
from tests.contract.attachment_blob_parts import BreakingDatabase, PausedPuts, eventually, waits_for_a_lock
from tests.contract.attachment_blob_uploads import upload

__all__ = ["blobs", "tenant"]

SESSION_ID = new_id(IdKind.SESSION)


def request_of(*contents: str, set_id: str = "") -> SetRequest:
    """A set with a file of each content, called like it."""
    items = [InlineItem(content, content, Encoding.UTF8) for content in contents]
    return SetRequest(set_id or new_set_id(), SESSION_ID, items)


class Begun:
    """A staging that has put its objects, or some of them, and waits."""

    def __init__(self, staging: Staging, objects: Any, staged: asyncio.Future[AttachmentSet]) -> None:
        self.staging = staging
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
async def begun(tenant: Tenant, request: SetRequest, *, puts_before: int | None = None) -> AsyncIterator[Begun]:
    async with open_staging(tenant.service, PausedPuts) as (staging, objects):
        objects.puts_before = puts_before
        staged = asyncio.ensure_future(staging.stage(tenant.tenant_id, request))
        await objects.were_put.wait()
        yield Begun(staging, objects, staged)


@asynccontextmanager
async def another(tenant: Tenant) -> AsyncIterator[tuple[Staging, Any]]:
    """A staging that does not wait, and tells what it puts."""
    async with open_staging(tenant.service, PausedPuts) as (staging, objects):
        objects.go_on.set()
        yield staging, objects


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
async def test_two_who_stage_the_same_set_at_once(tenant: Tenant, postgres: Postgres, fails: bool) -> None:
    request = request_of("a", "b")
    async with begun(tenant, request) as first, another(tenant) as (staging, objects):
        second = asyncio.ensure_future(staging.stage(tenant.tenant_id, request))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=fails)

        answered = await second

    assert objects.put_hashes == ({file.sha256 for file in answered.files} if fails else set())
    assert [row["state"] for row in await tenant.rows("sets")] == ["STAGED"]
    assert await tenant.read(request.set_id, "b") == b"b"


async def test_two_who_stage_other_files_under_the_same_id_at_once(tenant: Tenant, postgres: Postgres) -> None:
    request = request_of("a")
    async with begun(tenant, request) as first:
        second = asyncio.ensure_future(tenant.stage(text("a", "other"), set_id=request.set_id, session_id=SESSION_ID))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=False)

        with refused(Reason.ALREADY_EXISTS):
            await second

    assert await tenant.left() == (1, 1, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_two_sets_of_the_same_new_bytes_at_once(tenant: Tenant, postgres: Postgres, fails: bool) -> None:
    """The second one puts what the first has not committed, and what the first put and took back stays where the second has it."""
    one, other = request_of("a", "shared"), request_of("shared", "b")
    async with begun(tenant, one) as first, another(tenant) as (staging, objects):
        second = asyncio.ensure_future(staging.stage(tenant.tenant_id, other))
        await eventually(lambda: waits_for_a_lock(postgres))
        await first.ends(fails=fails)
        files = (await second).files

    assert objects.put_hashes == {file.sha256 for file in files if fails or file.name == "b"}
    assert await tenant.read(other.set_id, "shared") == b"shared"
    assert await tenant.left() == ((2, 2, 2) if fails else (4, 3, 3))
    await tenant.release(one.set_id)
    await tenant.release(other.set_id)
    assert await tenant.left() == (0, 0, 0)


async def test_bytes_that_are_stored_may_be_staged_by_several_at_once_and_are_released_by_nobody(
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


async def test_bytes_that_are_marked_for_deletion_stay_marked_where_they_are_not_put_anew(tenant: Tenant) -> None:
    old = await tenant.stage(text("a", "same"))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await store.release_set(connection, tenant.tenant_id, old.set_id)
        await store.condemn_blobs_of_set(connection, tenant.tenant_id, old.set_id)

    async with begun(tenant, request_of("same")) as first:
        await first.ends(fails=True)

    assert [row["state"] for row in await tenant.rows("blobs")] == ["DELETING"]
    assert await tenant.release(old.set_id) == 1
    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_connection_that_is_lost_at_the_commit(tenant: Tenant, is_committed: bool) -> None:
    """What became of it is unknown to who staged: it takes back what has no row."""
    database = BreakingDatabase(tenant.service.database)
    database.is_lost_behind, database.is_lost_before = is_committed, not is_committed
    request = request_of("a", "b")
    async with open_staging(tenant.service, database=database) as (staging, _):
        with pytest.raises(psycopg.OperationalError):
            await staging.stage(tenant.tenant_id, request)

        assert await tenant.left() == ((2, 2, 2) if is_committed else (0, 0, 0))
        assert (await staging.stage(tenant.tenant_id, request)).set_id == request.set_id

    assert await tenant.read(request.set_id, "a") == b"a"
    assert await tenant.release(request.set_id) == 2


async def test_a_set_that_was_released_before_it_is_written(tenant: Tenant) -> None:
    database, request = BreakingDatabase(tenant.service.database), request_of("a")
    database.meanwhile = lambda: tenant.release(request.set_id)
    async with open_staging(tenant.service, PausedPuts, database) as (staging, objects):
        with pytest.raises(MeshError) as refusal:
            await staging.stage(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.ATTACHMENT_SET_STATE
    assert objects.put_hashes == set()
    assert await tenant.left() == (0, 0, 0)


async def test_a_policy_that_changes_before_the_set_is_written(tenant: Tenant) -> None:
    database, request = BreakingDatabase(tenant.service.database), request_of("a", "b")
    database.meanwhile = lambda: tenant.prepare(2, max_file_count=1)
    async with open_staging(tenant.service, database=database) as (staging, _):
        with pytest.raises(MeshError) as refusal:
            await staging.stage(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED
    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("state", ["DELETING", "gone"])
async def test_an_upload_whose_bytes_go_before_the_set_is_written(tenant: Tenant, state: str) -> None:
    uploaded = await upload(tenant, b"uploaded")

    async def goes() -> None:
        async with tenant.service.database.transaction(tenant.tenant_id) as connection:
            await connection.execute("delete from uploads")
            await connection.execute("delete from blobs" if state == "gone" else "update blobs set state = 'DELETING'")

    database = BreakingDatabase(tenant.service.database)
    database.meanwhile = goes
    items = [InlineItem("a", "inline", Encoding.UTF8)]
    request = SetRequest(new_set_id(), SESSION_ID, items, [UploadRef(uploaded.upload_id, "b")])
    async with open_staging(tenant.service, PausedPuts, database) as (staging, objects):
        with pytest.raises(MeshError) as refusal:
            await staging.stage(tenant.tenant_id, request)

    assert refusal.value.reason is Reason.NOT_FOUND
    assert objects.put_hashes == set()
    assert (await tenant.rows("sets"), await tenant.rows("set_files")) == ([], [])


async def test_who_waits_to_stage_the_same_bytes_can_be_cancelled(tenant: Tenant, postgres: Postgres) -> None:
    async with begun(tenant, request_of("same")) as first, another(tenant) as (staging, objects):
        second = asyncio.ensure_future(staging.stage(tenant.tenant_id, request_of("same")))
        await eventually(lambda: waits_for_a_lock(postgres))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not await waits_for_a_lock(postgres)
        await first.ends(fails=False)

    assert objects.put_hashes == set()
    assert len(await tenant.rows("sets")) == 1
    assert await tenant.left() == (1, 1, 1)
