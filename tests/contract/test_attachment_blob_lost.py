"""Bytes whose object is gone: once a collection has seen it, whoever sends them again has them stored, for all who had them."""

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh_core.reasons import Reason

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, eager, refused, repaired, tenant, text
from tests.contract.attachment_blob_uploads import (
    begin,
    chunks,
    finish,
    ref,
    send,
    spec_of,
    stage_uploads,
)

__all__ = ["eager", "tenant"]

DATA = b"precious"
MISSING = {"missing_object_count": 1}
OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
async def blobs(eager: BlobService) -> BlobService:
    return eager


@pytest.fixture
async def staged(tenant: Tenant) -> attachment_pb2.AttachmentSet:
    """A set whose object is lost, and nobody has noticed."""
    staged = await tenant.stage(text("a.txt", DATA.decode()))
    tenant.lose(staged.files[0].sha256)
    return staged


async def test_StageSet__lost_bytes_are_put_again_and_heal_other_sets(
    tenant: Tenant, staged: attachment_pb2.AttachmentSet
) -> None:
    assert await tenant.collect(dry_run=True) == MISSING
    assert await tenant.collect() == MISSING

    again = await tenant.stage(text("b.txt", DATA.decode()))

    assert await tenant.read(again.set_id, "b.txt") == DATA
    assert await tenant.read(staged.set_id, "a.txt") == DATA
    assert await tenant.collect() == {}


async def test_UploadFile__lost_bytes_are_taken_again_and_heal_sets_and_uploads(tenant: Tenant) -> None:
    spec = spec_of(DATA)
    assert (await send(tenant, begin(spec), chunks(DATA), finish())).state == COMPLETE
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    tenant.lose(spec.sha256)
    assert await tenant.collect() == MISSING

    assert (await send(tenant, begin(spec))).state == OPEN
    assert (await send(tenant, begin(spec), chunks(DATA), finish())).state == COMPLETE

    assert await tenant.read(staged.set_id, "big.bin") == DATA
    another = await stage_uploads(tenant, ref(spec.upload_id))
    assert await tenant.read(another.set_id, "big.bin") == DATA
    assert await tenant.collect() == {}


async def test_an_object_that_was_restored_is_stored_again(
    tenant: Tenant, staged: attachment_pb2.AttachmentSet
) -> None:
    (row,) = await tenant.rows("blobs")
    for _ in range(2):  # It is told until it is repaired.
        assert await tenant.collect() == MISSING
        with refused(Reason.STORED_HASH_DIFFERS):
            await tenant.read(staged.set_id, "a.txt")

    tenant.put(row["object_key"], DATA)
    assert await tenant.read(staged.set_id, "a.txt") == DATA
    assert await tenant.collect() == {}

    assert (await send(tenant, begin(spec_of(DATA)))).state == COMPLETE
    assert [row["object_key"]] == tenant.object_keys()


async def test_lost_bytes_that_nobody_has_any_more_are_forgotten(
    tenant: Tenant, staged: attachment_pb2.AttachmentSet
) -> None:
    assert await tenant.collect() == MISSING
    await tenant.release(staged.set_id)
    assert await tenant.left() == (0, 0, 0)

    spec = spec_of(DATA)
    await send(tenant, begin(spec), chunks(DATA), finish())
    tenant.lose(spec.sha256)
    assert await tenant.collect() == MISSING
    await repaired(tenant, {"unsettled_blob_count": 1})
    assert await tenant.left() == (0, 0, 0)
