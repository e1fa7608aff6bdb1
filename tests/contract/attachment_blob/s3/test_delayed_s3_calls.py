"""S3 executes a call long after its caller gave up. Later objects are not affected."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.clients.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Failed
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.operations.releaser import Releaser
from spawnmesh_attachment_blob.operations.s3_limiter import S3TransactionLimiter
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from tests.support.attachment_blob.fakes import open_second_process
from tests.support.attachment_blob.fixtures import BlobService, Tenant, new_set_id
from tests.support.attachment_blob.inline import text


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare()
    return tenant


class LateObjects(ObjectStore):
    """Reports a failure of each call, and executes it when the test says so."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        late.append(self)
        self.put_late: dict[str, bytes] = {}
        self.deleted_late: list[str] = []

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        self.put_late |= data_by_key
        raise NotAllPut(frozenset())

    async def delete_all(self, tenant_id: str, keys: Collection[str]) -> None:
        self.deleted_late += keys
        raise S3Failed(never_sent=False)

    async def execute_late(self, tenant_id: str) -> None:
        await super().put_all(tenant_id, self.put_late)
        await super().delete_all(tenant_id, self.deleted_late)


late: list[LateObjects] = []


async def test_a_late_deletion_does_not_affect_bytes_stored_since(tenant: Tenant) -> None:
    released = await tenant.stage(text("a", "same"))
    async with open_second_process(tenant.service, objects_kind=LateObjects) as deps:
        with pytest.raises(MeshError):
            await deps.releaser.release_set(tenant.tenant_id, released.set_id)
        staged = await tenant.stage(text("a", "same"))

        assert late[-1].deleted_late
        await late[-1].execute_late(tenant.tenant_id)

    assert await tenant.read(staged.set_id, "a") == b"same"
    await tenant.collect()
    assert await tenant.left() == (1, 1, 1)


async def test_a_late_put_and_its_deletion_do_not_affect_bytes_stored_since(tenant: Tenant) -> None:
    set_id, session_id = new_set_id(), new_id(IdKind.SESSION)
    request = SetRequest(set_id, session_id, [InlineItem("a", "same", Encoding.UTF8, "text/plain")])
    async with open_second_process(tenant.service, objects_kind=LateObjects) as deps:
        with pytest.raises(MeshError):
            await deps.stager.stage_set(tenant.tenant_id, request)
        await tenant.stage(text("a", "same"), set_id=set_id, session_id=session_id)

        assert late[-1].put_late.keys() == set(late[-1].deleted_late)
        await late[-1].execute_late(tenant.tenant_id)

    assert await tenant.read(set_id, "a") == b"same"
    assert await tenant.collect() == {}
    assert await tenant.left() == (1, 1, 1)


async def test_bytes_that_are_staged_during_their_release_are_stored_once(tenant: Tenant) -> None:
    released, staged = await tenant.stage(text("a", "same")), []

    class Meanwhile(S3TransactionLimiter):
        @asynccontextmanager
        async def acquire(self, tenant_id: str) -> AsyncIterator[None]:
            staged.append(await tenant.stage(text("a", "same")))
            yield

    async with open_dependencies(tenant.service.settings) as on:
        assert (
            await Releaser(on.database, on.objects, Meanwhile(2)).release_set(
                tenant.tenant_id, released.set_id
            )
            == 0
        )

    assert await tenant.read(staged[0].set_id, "a") == b"same"
    assert await tenant.left() == (1, 1, 1)
