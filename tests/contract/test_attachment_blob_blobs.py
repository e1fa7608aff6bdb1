"""PutBlob, GetBlob and ReleaseBlob: the large payloads of transcripts."""

import asyncio
import hashlib
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import ListSetsRequest
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.acting import acting_with_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.contract.attachment_blob_fixtures import KIB, BlobService, Tenant, blobs, refused, tenant, text
from tests.contract.attachment_blob_uploads import content

__all__ = ["blobs", "tenant"]

SESSION_ID = new_id(IdKind.SESSION)


def as_transcript(tenant: Tenant) -> str:
    return TokenMinter("transcript", tenant.service.keys / "transcript.pem").service_token(tenant.tenant_id)


def stub_of(tenant: Tenant) -> Any:
    return BlobServiceStub(tenant.service.peer.channel)


async def call(tenant: Tenant, method: str, request: Any, *, token: str = "") -> Any:
    with acting_with_token(token or as_transcript(tenant)):
        return await tenant.service.peer.unary(getattr(stub_of(tenant), method), request, timeout_seconds=20)


async def put(tenant: Tenant, data: bytes, blob_id: str = "", **more: Any) -> tuple[str, pb.PutBlobResponse]:
    blob_id = blob_id or new_id(IdKind.BLOB)
    request = pb.PutBlobRequest(blob_id=blob_id, session_id=SESSION_ID, data=data, mime_type="image/png")
    answer: pb.PutBlobResponse = await call(tenant, "PutBlob", request, **more)
    return blob_id, answer


async def got(tenant: Tenant, blob_id: str, **span: int) -> bytes:
    request = pb.GetBlobRequest(blob_id=blob_id, **span)
    with acting_with_token(as_transcript(tenant)):
        answers = tenant.service.peer.stream(stub_of(tenant).GetBlob, request, timeout_seconds=20)
        return b"".join([piece.data async for piece in answers])


async def release(tenant: Tenant, blob_id: str) -> bool:
    request = pb.ReleaseBlobRequest(blob_id=blob_id)
    answer: pb.ReleaseBlobResponse = await call(tenant, "ReleaseBlob", request)
    return answer.deleted_object


@pytest.mark.parametrize("size", [0, 1, 256 * KIB + 1, 6 * 1024 * KIB])
async def test_PutBlob__whatever_the_limits_of_attachments(blobs: BlobService, size: int) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(enabled=False, max_file_bytes=0)
    data = content(size)

    blob_id, answer = await put(tenant, data)

    assert (answer.size_bytes, answer.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert await got(tenant, blob_id) == data
    assert await got(tenant, blob_id, offset=size // 2, length=10) == data[size // 2 : size // 2 + 10]
    assert await release(tenant, blob_id) is True
    assert await tenant.left() == (0, 0, 0)


async def test_PutBlob__again(tenant: Tenant) -> None:
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


async def test_a_payload_is_no_attachment_set_and_the_other_way_round(tenant: Tenant) -> None:
    blob_id, _ = await put(tenant, b"payload")
    staged = await tenant.stage(text("a", "x"))

    sets = await tenant.call("ListSets", ListSetsRequest(), token=tenant.client_token())
    assert [one.set_id for one in sets.sets] == [staged.set_id]
    with refused(Reason.INVALID_REQUEST):
        await tenant.get(blob_id)
    with refused(Reason.INVALID_REQUEST):
        await got(tenant, staged.set_id)


async def test_GetBlob__lost_or_changed_or_another_tenants(tenant: Tenant, blobs: BlobService) -> None:
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


async def test_payloads_are_for_the_transcript_service_alone(tenant: Tenant) -> None:
    for token in (tenant.client_token(), tenant.service_token(), tenant.run_token(SESSION_ID)):
        with refused(Reason.CALLER_NOT_ALLOWED):
            await put(tenant, b"x", token=token)


async def test_PutBlob__tenant_not_prepared(blobs: BlobService) -> None:
    with refused(Reason.UNKNOWN_TENANT):
        await put(blobs.tenant(), b"x")
