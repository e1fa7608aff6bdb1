"""What replicas of the version before leave, which write sets down before their objects are put."""

import hashlib

import pytest
from spawnmesh_attachment_blob.domain.sets import object_key
from spawnmesh_core.reasons import Reason

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, eager, new_set_id, refused, repaired, text

__all__ = ["eager"]


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare()
    return tenant


async def left_by_the_version_before(tenant: Tenant, set_id: str, *contents: str, put: bool) -> None:
    """What a replica leaves that wrote down a set as it was done before, and ended before its objects were all there."""
    hashes = [hashlib.sha256(one.encode()).hexdigest() for one in contents]
    columns = (list(contents), [len(one) for one in contents], hashes, [""] * len(hashes))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        cursor = await connection.execute(
            "select unstored from intend_set(%s, 1, %s, 'ses_x', %s::text[], %s::bigint[], %s::text[], %s::text[])",
            (tenant.tenant_id, set_id, *columns),
        )
        ((unstored,),) = [tuple(row.values()) for row in await cursor.fetchall()]
    for one, sha256 in zip(contents, hashes, strict=True):
        if put and sha256 in unstored:
            tenant.put(object_key(sha256), one.encode())


@pytest.mark.parametrize("put", [False, True])
async def test_what_a_replica_of_the_version_before_left_unfinished(tenant: Tenant, put: bool) -> None:
    kept, set_id = await tenant.stage(text("kept", "A")), new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=put)
    assert {row["state"] for row in await tenant.rows("blobs")} == {"STORED", "PENDING"}
    with refused(Reason.NOT_FOUND):
        await tenant.get(set_id)
    with refused(Reason.NOT_FOUND):
        await tenant.attach(set_id)

    await repaired(tenant, {"unremoved_set_count": 1})

    assert await tenant.read(kept.set_id, "kept") == b"A"
    assert await tenant.left() == (1, 1, 1)


@pytest.mark.parametrize("put", [False, True])
async def test_a_set_that_a_replica_of_the_version_before_left_is_staged_again(tenant: Tenant, put: bool) -> None:
    set_id = new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=put)

    await tenant.stage(text("b", "other"), text("c", "C"), set_id=set_id)

    assert await tenant.read(set_id, "b") == b"other"
    # What it put of the bytes that were put anew lies under another key.
    await repaired(tenant, {"unsettled_blob_count": 1} | ({"orphan_object_count": 1} if put else {}))
    assert await tenant.left() == (2, 2, 2)


async def test_a_set_that_a_replica_of_the_version_before_left_is_released(tenant: Tenant) -> None:
    set_id = new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=True)

    assert await tenant.release(set_id) == 2

    assert await tenant.left() == (0, 0, 0)
