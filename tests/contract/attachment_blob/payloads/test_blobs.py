"""PutBlob, GetBlob and ReleaseBlob: the large payloads of transcripts."""

import asyncio
import hashlib

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import ListSetsRequest
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import KIB, BlobService, Tenant, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.payloads import SESSION_ID, got, put, release
from tests.support.attachment_blob.uploads import content


@pytest.mark.parametrize("size", [0, 1, 256 * KIB + 1, 6 * 1024 * KIB])
async def test_PutBlob__ignores_the_limits_of_attachments(blobs: BlobService, size: int) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(enabled=False, max_file_bytes=0)
    data = content(size)

    blob_id, answer = await put(tenant, data)

    assert (answer.size_bytes, answer.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert await got(tenant, blob_id) == data
    assert await got(tenant, blob_id, offset=size // 2, length=10) == data[size // 2 : size // 2 + 10]
    assert await release(tenant, blob_id) is True
    assert await tenant.left() == (0, 0, 0)


async def test_PutBlob__repeated(tenant: Tenant) -> None:
    blob_id, answer = await put(tenant, b"payload")

    assert (await put(tenant, b"payload", blob_id))[1] == answer
    with refused(Reason.ALREADY_EXISTS):
        await put(tenant, b"other", blob_id)
    await release(tenant, blob_id)
    with refused(Reason.ATTACHMENT_SET_STATE):
        await put(tenant, b"payload", blob_id)
    assert await tenant.left() == (0, 0, 0)


async def test_PutBlob__the_same_bytes_as_an_attachment_are_stored_once(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "same"))
    first, second = await asyncio.gather(put(tenant, b"same"), put(tenant, b"same"))
    assert len(tenant.object_keys()) == 1

    assert await tenant.release(staged.set_id) == 0
    assert await release(tenant, first[0]) is False
    assert await got(tenant, second[0]) == b"same"
    assert await release(tenant, second[0]) is True
    assert tenant.object_keys() == []


async def test_payloads_and_attachment_sets_are_separate(tenant: Tenant) -> None:
    blob_id, _ = await put(tenant, b"payload")
    staged = await tenant.stage(text("a", "x"))

    sets = await tenant.call("ListSets", ListSetsRequest(), token=tenant.client_token())
    assert [one.set_id for one in sets.sets] == [staged.set_id]
    with refused(Reason.INVALID_REQUEST):
        await tenant.get(blob_id)
    with refused(Reason.INVALID_REQUEST):
        await got(tenant, staged.set_id)


async def test_GetBlob__lost_changed_or_of_another_tenant(tenant: Tenant, blobs: BlobService) -> None:
    blob_id, answer = await put(tenant, b"payload")
    other = blobs.tenant()
    await other.prepare()
    with refused(Reason.NOT_FOUND):
        await got(other, blob_id)
    tenant.overwrite(answer.sha256, b"changed")
    with refused(Reason.STORED_HASH_DIFFERS):
        await got(tenant, blob_id)
    tenant.lose(answer.sha256)
    with refused(Reason.STORED_HASH_DIFFERS):
        await got(tenant, blob_id)


async def test_only_the_transcript_service_may_use_payloads(tenant: Tenant) -> None:
    for token in (tenant.client_token(), tenant.service_token(), tenant.run_token(SESSION_ID)):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await put(tenant, b"x", token=token)


async def test_PutBlob__tenant_not_prepared(blobs: BlobService) -> None:
    with refused(Reason.UNKNOWN_TENANT):
        await put(blobs.tenant(), b"x")
