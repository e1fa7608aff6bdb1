"""A lost or truncated object is repaired for all sets when a call sends the bytes again."""

from dataclasses import dataclass, replace

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh_attachment_blob.app import open_dependencies
from spawnmesh_attachment_blob.clients.multiparts import Multiparts
from spawnmesh_attachment_blob.domain.comparison import ObjectEntry
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fakes import collector_of
from tests.support.attachment_blob.fixtures import BlobService, Tenant, refused, repaired
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import (
    begin,
    chunks,
    finish,
    ref,
    send,
    spec_of,
    stage_uploads,
)

DATA = b"precious"
OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
async def blobs(eager: BlobService) -> BlobService:
    return eager


@dataclass(frozen=True, slots=True)
class Harm:
    """A damage to an object, and the counts of the collections after it."""

    left: bytes | None
    told: dict[str, int]
    found: dict[str, int]

    def befalls(self, tenant: Tenant, sha256: str) -> None:
        if self.left is None:
            tenant.lose(sha256)
        else:
            tenant.overwrite(sha256, self.left)


HARMS = {
    "missing": Harm(None, {"missing_object_count": 1}, {}),
    "cut": Harm(DATA[:3], {"damaged_object_count": 1}, {"orphan_object_count": 1}),
    "emptied": Harm(b"", {"damaged_object_count": 1}, {"orphan_object_count": 1}),
}


@pytest.fixture(params=HARMS)
def harm(request: pytest.FixtureRequest) -> Harm:
    return HARMS[request.param]


@pytest.fixture
async def staged(tenant: Tenant, harm: Harm) -> attachment_pb2.AttachmentSet:
    """A set whose object is damaged. No collection has seen it yet."""
    staged = await tenant.stage(text("a.txt", DATA.decode()))
    harm.befalls(tenant, staged.files[0].sha256)
    return staged


async def test_StageSet__lost_bytes_are_put_again_and_repair_other_sets(
    tenant: Tenant, harm: Harm, staged: attachment_pb2.AttachmentSet
) -> None:
    assert await tenant.collect(dry_run=True) == harm.told
    assert await tenant.collect() == harm.told

    again = await tenant.stage(text("b.txt", DATA.decode()))

    assert await tenant.read(again.set_id, "b.txt") == DATA
    assert await tenant.read(staged.set_id, "a.txt") == DATA
    await repaired(tenant, harm.found)
    assert await tenant.read(staged.set_id, "a.txt") == DATA


async def test_UploadFile__lost_bytes_are_received_again_and_repair_sets_and_uploads(
    tenant: Tenant, harm: Harm
) -> None:
    spec = spec_of(DATA)
    assert (await send(tenant, begin(spec), chunks(DATA), finish())).state == COMPLETE
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    harm.befalls(tenant, spec.sha256)
    assert await tenant.collect() == harm.told

    assert (await send(tenant, begin(spec))).state == OPEN
    assert (await send(tenant, begin(spec), chunks(DATA), finish())).state == COMPLETE

    assert await tenant.read(staged.set_id, "big.bin") == DATA
    another = await stage_uploads(tenant, ref(spec.upload_id))
    await repaired(tenant, harm.found)
    assert await tenant.read(another.set_id, "big.bin") == DATA


async def test_an_object_that_was_restored_is_stored_again(
    tenant: Tenant, harm: Harm, staged: attachment_pb2.AttachmentSet
) -> None:
    (row,) = await tenant.rows("blobs")
    for _ in range(2):  # Each collection reports it until it is repaired.
        assert await tenant.collect() == harm.told
        with refused(Reason.STORED_HASH_DIFFERS):
            await tenant.read(staged.set_id, "a.txt")

    tenant.put(row["object_key"], DATA)
    assert await tenant.read(staged.set_id, "a.txt") == DATA
    assert await tenant.collect() == {}

    assert (await send(tenant, begin(spec_of(DATA)))).state == COMPLETE
    assert [row["object_key"]] == tenant.object_keys()


async def test_unreferenced_lost_bytes_are_deleted(
    tenant: Tenant, harm: Harm, staged: attachment_pb2.AttachmentSet
) -> None:
    assert await tenant.collect() == harm.told
    await tenant.release(staged.set_id)
    assert await tenant.left() == (0, 0, 0)

    spec = spec_of(DATA)
    await send(tenant, begin(spec), chunks(DATA), finish())
    harm.befalls(tenant, spec.sha256)
    assert await tenant.collect() == harm.told
    await repaired(tenant, {"unsettled_blob_count": 1})
    assert await tenant.left() == (0, 0, 0)


class ListedShort(Multiparts):
    """Lists objects with one byte less than they have."""

    async def list_objects(self, tenant_id: str, prefix: str, after: str, limit: int) -> list[ObjectEntry]:
        entries = await super().list_objects(tenant_id, prefix, after, limit)
        return [replace(entry, size_bytes=entry.size_bytes - 1) for entry in entries]


class ListedNot(Multiparts):
    """Lists no objects."""

    async def list_objects(self, tenant_id: str, prefix: str, after: str, limit: int) -> list[ObjectEntry]:
        return []


@pytest.mark.parametrize("listing_kind", [ListedShort, ListedNot])
async def test_differences_of_a_listing_are_checked_again(
    tenant: Tenant, listing_kind: type[Multiparts]
) -> None:
    staged = await tenant.stage(text("a.txt", DATA.decode()))
    async with open_dependencies(tenant.service.settings) as on:
        listing = listing_kind(on.buckets, on.calls)
        counts = await collector_of(on, multiparts=listing).collect(tenant.tenant_id, dry_run=False)

    assert (counts.missing_object_count, counts.damaged_object_count) == (0, 0)
    assert {row["state"] for row in await tenant.rows("blobs")} == {"STORED"}
    assert await tenant.read(staged.set_id, "a.txt") == DATA
