"""Payloads, as the transcript service stores them."""

from typing import Any

from spawnmesh.attachment_blob.v1 import blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.attachment_blob.fixtures import Tenant

SESSION_ID = new_id(IdKind.SESSION)


def as_transcript(tenant: Tenant) -> str:
    return TokenMinter("transcript", tenant.service.keys / "transcript.pem").service_token(tenant.tenant_id)


def stub_of(tenant: Tenant) -> Any:
    return BlobServiceStub(tenant.service.peer.channel)


async def call(tenant: Tenant, method: str, request: Any, *, token: str = "") -> Any:
    with use_token(token or as_transcript(tenant)):
        return await tenant.service.peer.unary(getattr(stub_of(tenant), method), request, timeout_seconds=60)


async def put(tenant: Tenant, data: bytes, blob_id: str = "", **more: Any) -> tuple[str, pb.PutBlobResponse]:
    blob_id = blob_id or new_id(IdKind.BLOB)
    request = pb.PutBlobRequest(blob_id=blob_id, session_id=SESSION_ID, data=data, mime_type="image/png")
    answer: pb.PutBlobResponse = await call(tenant, "PutBlob", request, **more)
    return blob_id, answer


async def got(tenant: Tenant, blob_id: str, **span: int) -> bytes:
    request = pb.GetBlobRequest(blob_id=blob_id, **span)
    with use_token(as_transcript(tenant)):
        answers = tenant.service.peer.stream(stub_of(tenant).GetBlob, request, timeout_seconds=60)
        return b"".join([piece.data async for piece in answers])


async def release(tenant: Tenant, blob_id: str) -> bool:
    request = pb.ReleaseBlobRequest(blob_id=blob_id)
    answer: pb.ReleaseBlobResponse = await call(tenant, "ReleaseBlob", request)
    return answer.deleted_object
