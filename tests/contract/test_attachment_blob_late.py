"""S3 does what was given up long before: nothing that was stored since is touched."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh_attachment_blob.app import open_stores
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.removal import Removal
from spawnmesh_attachment_blob.s3_calls import S3Failed
from spawnmesh_attachment_blob.s3_turns import S3Turns
from spawnmesh_attachment_blob.staging import SetRequest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, eager, new_set_id, text
from tests.contract.attachment_blob_parts import open_parts

__all__ = ["eager"]


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare()
    return tenant


class LateObjects(ObjectStore):
    """Says of everything that it failed, and does it when it is told to."""

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

    async def carry_out(self, tenant_id: str) -> None:
        await super().put_all(tenant_id, self.put_late)
        await super().delete_all(tenant_id, self.deleted_late)


late: list[LateObjects] = []


async def test_a_late_deletion_of_released_bytes_spares_those_that_were_stored_since(tenant: Tenant) -> None:
    released = await tenant.stage(text("a", "same"))
    async with open_parts(tenant.service, objects_kind=LateObjects) as parts:
        with pytest.raises(MeshError):
            await parts.removal.release(tenant.tenant_id, released.set_id)
        staged = await tenant.stage(text("a", "same"))

        assert late[-1].deleted_late
        await late[-1].carry_out(tenant.tenant_id)

    assert await tenant.read(staged.set_id, "a") == b"same"
    await tenant.collect()
    assert await tenant.left() == (1, 1, 1)


async def test_a_late_put_and_its_late_taking_back_spare_what_was_stored_since(tenant: Tenant) -> None:
    set_id, session_id = new_set_id(), new_id(IdKind.SESSION)
    request = SetRequest(set_id, session_id, [InlineItem("a", "same", Encoding.UTF8, "text/plain")])
    async with open_parts(tenant.service, objects_kind=LateObjects) as parts:
        with pytest.raises(MeshError):
            await parts.staging.stage(tenant.tenant_id, request)
        await tenant.stage(text("a", "same"), set_id=set_id, session_id=session_id)

        assert late[-1].put_late.keys() == set(late[-1].deleted_late)
        await late[-1].carry_out(tenant.tenant_id)

    assert await tenant.read(set_id, "a") == b"same"
    assert await tenant.collect() == {}
    assert await tenant.left() == (1, 1, 1)


async def test_bytes_that_are_put_anew_while_they_are_released_are_stored_once(tenant: Tenant) -> None:
    released, staged = await tenant.stage(text("a", "same")), []

    class Meanwhile(S3Turns):
        @asynccontextmanager
        async def taken(self) -> AsyncIterator[None]:
            staged.append(await tenant.stage(text("a", "same")))
            yield

    async with open_stores(tenant.service.settings) as on:
        assert await Removal(on.database, on.objects, Meanwhile(2)).release(tenant.tenant_id, released.set_id) == 0

    assert await tenant.read(staged[0].set_id, "a") == b"same"
    assert await tenant.left() == (1, 1, 1)
