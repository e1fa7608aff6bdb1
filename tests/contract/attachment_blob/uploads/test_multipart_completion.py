"""The body of S3's response says whether a multipart upload was completed. Its status does not."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import Tenant, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.uploads import (
    MIB,
    PART,
    WHOLE,
    begin,
    chunks,
    content,
    finish,
    get_upload,
    ref,
    send,
    spec_of,
    stage_uploads,
)

DATA = content(PART + MIB)
NAMESPACE = b"http://s3.amazonaws.com/doc/2006-03-01/"


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys) as service:
        tenant = service.tenant()
        await tenant.prepare(**WHOLE)
        yield tenant


@pytest.mark.parametrize(
    "answer",
    [
        b'<?xml version="1.0" encoding="UTF-8"?>\n  \n'
        b"<Error><Code>InternalError</Code><Message>again</Message></Error>",
        b"<Error><Code>InternalError</Code><ETag>&quot;0&quot;</ETag></Error>",
        b'<CompleteMultipartUploadResult xmlns="%s"><Key>k</Key></CompleteMultipartUploadResult>' % NAMESPACE,
        b'<CompleteMultipartUploadResult xmlns="%s"><ETag>"0-2"</ETag></CompleteMultipartUploadResult>'
        % NAMESPACE,
        b"         ",
    ],
    ids=["an-error", "an-error-that-names-an-etag", "no-etag", "no-object", "nothing"],
)
async def test_UploadFile__is_complete_only_if_its_object_exists(
    tenant: Tenant, gateway: Gateway, answer: bytes
) -> None:
    gateway.completion = answer
    spec = spec_of(DATA)
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await send(tenant, begin(spec), chunks(DATA), finish())

    left = await get_upload(tenant, spec.upload_id)
    assert (left.state, left.durable_bytes) == (upload_pb2.UPLOAD_STATE_OPEN, len(DATA))
    gateway.completion = b""
    await send(tenant, begin(spec), finish())

    staged = await stage_uploads(tenant, ref(spec.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == DATA


async def test_UploadFile__lost_parts_reported_with_status_200(tenant: Tenant, gateway: Gateway) -> None:
    gateway.completion = b"<Error><Code>NoSuchUpload</Code><Message>no</Message></Error>"
    spec = spec_of(DATA)
    with refused(Reason.UPLOAD_HASH_DIFFERS):
        await send(tenant, begin(spec), chunks(DATA), finish())

    gateway.completion = b""
    await send(tenant, begin(spec), chunks(DATA), finish())
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == DATA
