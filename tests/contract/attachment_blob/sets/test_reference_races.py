"""Files of other sets that are released while a new set with them is staged."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.items import FileRef
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.domain.uploads import UploadRef
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres

from tests.support.attachment_blob.fakes import (
    BreakingDatabase,
    Killed,
    Life,
    PausedPuts,
    Steps,
    open_second_process,
    waits_for_a_lock,
)
from tests.support.attachment_blob.fixtures import Tenant, new_set_id, open_stager, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.references import file_of, stage_references
from tests.support.attachment_blob.uploads import upload
from tests.support.waiting import eventually

CHILD = new_id(IdKind.SESSION)
INLINE = InlineItem("i", "inline", Encoding.UTF8)


async def release(tenant: Tenant, set_id: str) -> None:
    await tenant.release(set_id)


async def mark(tenant: Tenant, set_id: str) -> None:
    """Begin the release of the set. Its process ends before the objects are deleted."""
    async with open_second_process(tenant.service, life=Life(4)) as deps:
        with pytest.raises(Killed):
            await deps.releaser.release_set(tenant.tenant_id, set_id)
    assert {row["state"] for row in await tenant.rows("blobs")} == {"DELETING"}


async def forget(tenant: Tenant, set_id: str) -> None:
    """Release the set, and delete its tombstone."""
    await tenant.release(set_id)
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("delete from sets where set_id = %s", (set_id,))


async def lose(tenant: Tenant, set_id: str) -> None:
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update blobs set state = 'LOST'")


@pytest.mark.parametrize("items", [[], [INLINE]], ids=["alone", "with_an_item"])
@pytest.mark.parametrize(
    ("goes", "reason"),
    [
        (release, Reason.ATTACHMENT_SET_STATE),
        (mark, Reason.ATTACHMENT_SET_STATE),
        (forget, Reason.NOT_FOUND),
        (lose, Reason.STORED_HASH_DIFFERS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_source_that_goes_behind_its_lookup_refuses_the_set(
    tenant: Tenant,
    goes: Callable[[Tenant, str], Awaitable[None]],
    reason: Reason,
    items: list[InlineItem],
) -> None:
    source = await tenant.stage(text("a", "source"))
    database = BreakingDatabase(tenant.service.database)
    attempts = []

    async def meanwhile() -> None:
        attempts.append(source.set_id)
        if len(attempts) == 1:
            await goes(tenant, source.set_id)

    database.meanwhile = meanwhile
    request = SetRequest(new_set_id(), CHILD, items, references=[FileRef(source.set_id, "a", "")])
    async with open_stager(tenant.service, PausedPuts, database) as (stager, objects):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, request)

    assert refusal.value.reason is reason
    assert source.set_id in {refusal.value.facts.get(key) for key in ("set_id", "id")} or reason is (
        Reason.STORED_HASH_DIFFERS
    )
    assert objects.put_hashes == set()
    assert request.set_id not in {row["set_id"] for row in await tenant.rows("sets")}
    assert request.set_id not in {row["set_id"] for row in await tenant.rows("set_files")}
    await tenant.recount()


@pytest.mark.parametrize("keeper", ["set", "upload", "item"])
async def test_a_source_that_is_released_meanwhile_may_leave_its_bytes(tenant: Tenant, keeper: str) -> None:
    """Another set or an upload has the bytes, or the call sends them, too."""
    source = await tenant.stage(text("a", "source"))
    items = [InlineItem("i", "source", Encoding.UTF8)] if keeper == "item" else []
    if keeper == "set":
        await tenant.stage(text("b", "source"))
    elif keeper == "upload":
        await upload(tenant, b"source")
    database = BreakingDatabase(tenant.service.database)
    database.meanwhile = lambda: tenant.release(source.set_id)
    request = SetRequest(new_set_id(), CHILD, items, references=[FileRef(source.set_id, "a", "")])

    async with open_stager(tenant.service, database=database) as (stager, _):
        staged = await stager.stage_set(tenant.tenant_id, request)

    assert await tenant.get(staged.set_id)
    assert await tenant.read(staged.set_id, "a") == b"source"


async def test_an_upload_whose_bytes_are_lost_beside_a_reference_is_not_found(tenant: Tenant) -> None:
    """The collector has marked the bytes, and has not deleted the upload yet."""
    source, done = await tenant.stage(text("a", "source")), await upload(tenant, b"uploaded")
    database = BreakingDatabase(tenant.service.database)
    database.meanwhile = lambda: lose(tenant, source.set_id)
    request = SetRequest(
        new_set_id(),
        CHILD,
        [],
        [UploadRef(done.upload_id, "u")],
        [FileRef(source.set_id, "a", "")],
    )
    async with open_stager(tenant.service, database=database) as (stager, _):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(tenant.tenant_id, request)

    assert (refusal.value.reason, refusal.value.facts["id"]) == (Reason.NOT_FOUND, done.upload_id)
    await tenant.recount()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_release_of_the_source_waits_for_the_set_that_refers_to_it(
    tenant: Tenant, postgres: Postgres, fails: bool
) -> None:
    source = await tenant.stage(text("a", "source"))
    request = SetRequest(new_set_id(), CHILD, [INLINE], references=[FileRef(source.set_id, "a", "")])
    async with open_stager(tenant.service, PausedPuts) as (stager, objects):
        staging = asyncio.ensure_future(stager.stage_set(tenant.tenant_id, request))
        await objects.were_put.wait()
        releasing = asyncio.ensure_future(tenant.release(source.set_id))
        await eventually(lambda: waits_for_a_lock(postgres))
        objects.fails = fails
        objects.go_on.set()
        if fails:
            with pytest.raises(MeshError):
                await staging
        else:
            await staging

        assert await releasing == (1 if fails else 0)

    if fails:
        assert await tenant.left() == (0, 0, 0)
        return
    assert await tenant.read(request.set_id, "a") == b"source"
    assert await tenant.release(request.set_id) == 2
    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("attempt", range(12))
async def test_a_source_released_at_the_same_time_leaves_a_refusal_or_a_readable_set(
    tenant: Tenant, attempt: int
) -> None:
    source = await tenant.stage(text("a", "source"), text("b", "other"))
    references = [file_of(source.set_id, "a"), file_of(source.set_id, "b")]

    async def released() -> None:
        await asyncio.sleep(attempt / 1_000)
        await tenant.release(source.set_id)

    staged, _ = await asyncio.gather(
        stage_references(tenant, *references), released(), return_exceptions=True
    )

    if isinstance(staged, MeshError):
        assert staged.reason is Reason.ATTACHMENT_SET_STATE
        assert await tenant.left() == (0, 0, 0)
    else:
        assert not isinstance(staged, BaseException), staged
        assert await tenant.read(staged.set_id, "a") == b"source"
        assert await tenant.read(staged.set_id, "b") == b"other"
        assert await tenant.release(staged.set_id) == 2
    with refused(Reason.ATTACHMENT_SET_STATE):
        await stage_references(tenant, references[0])


@pytest.mark.parametrize(("has_reference", "expected"), [(False, 1), (True, 2)])
async def test_a_set_without_references_needs_one_transaction(
    tenant: Tenant, has_reference: bool, expected: int
) -> None:
    source, steps = await tenant.stage(text("a", "source")), Steps()
    references = [FileRef(source.set_id, "a", "")] if has_reference else []
    async with open_second_process(tenant.service, life=steps) as deps:
        await deps.stager.stage_set(tenant.tenant_id, SetRequest(new_set_id(), CHILD, [INLINE]))
        steps.names.clear()
        request = SetRequest(new_set_id(), CHILD, [INLINE], references=references)
        await deps.stager.stage_set(tenant.tenant_id, request)
    assert steps.names.count("before a transaction") == expected
