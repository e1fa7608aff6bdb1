"""StageSet with uploads, beside inline items."""

import hashlib

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import (
    MIB,
    WHOLE,
    begin,
    content,
    new_upload_id,
    ref,
    send,
    spec_of,
    stage_uploads,
    upload,
)

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    """A tenant that may upload large files."""
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def test_StageSet__items_and_uploads(tenant: Tenant) -> None:
    big, small = content(3 * MIB), b"small"
    done = await upload(tenant, big)
    done_small = await upload(tenant, small, name="small.txt")

    staged = await stage_uploads(
        tenant,
        ref(done.upload_id),
        ref(done_small.upload_id),
        ref(done.upload_id, "copy"),
        items=[text("a", "x")],
    )

    assert [file.name for file in staged.files] == ["a", "big.bin", "small.txt", "copy"]
    assert staged.total_bytes == 1 + 2 * len(big) + len(small)
    for name, data in (("a", b"x"), ("copy", big), ("small.txt", small)):
        assert await tenant.read(staged.set_id, name) == data
    assert hashlib.sha256(await tenant.read(staged.set_id, "big.bin")).hexdigest() == done.sha256


@pytest.mark.parametrize(
    ("limits", "name", "reason", "facts"),
    [
        ({"max_file_count": 1}, "b", "ATTACHMENTS_FILE_COUNT_EXCEEDED", {"count": "2", "limit": "1"}),
        ({}, "A", "ATTACHMENTS_DUPLICATE_NAME", {"index": "1", "first_index": "0"}),
        ({}, "x/y", "ATTACHMENTS_INVALID_NAME", {"index": "1"}),
        ({"max_file_bytes": 9}, "b", "ATTACHMENTS_FILE_BYTES_EXCEEDED", {"index": "1"}),
        (
            {"max_total_bytes": 10},
            "b",
            "ATTACHMENTS_TOTAL_BYTES_EXCEEDED",
            {"index": "1", "limit_bytes": "10"},
        ),
    ],
)
async def test_StageSet__limits_apply_to_the_sum_of_items_and_uploads(
    blobs: BlobService, limits: dict[str, int], name: str, reason: str, facts: dict[str, str]
) -> None:
    tenant = blobs.tenant()
    await tenant.prepare()
    done = await upload(tenant, b"0123456789")
    await tenant.prepare(2, **limits)

    with refused(Reason(reason), **facts):
        await stage_uploads(tenant, ref(done.upload_id, name), items=[text("a", "x")])
    assert await tenant.rows("sets") == []


async def test_StageSet__upload_incomplete_or_missing(tenant: Tenant) -> None:
    spec = spec_of(b"x")
    await send(tenant, begin(spec))

    with refused(Reason.UPLOAD_INCOMPLETE, upload_id=spec.upload_id):
        await stage_uploads(tenant, ref(spec.upload_id), items=[text("a", "x")])
    with refused(Reason.NOT_FOUND):
        await stage_uploads(tenant, ref(new_upload_id()))
    with refused(Reason.INVALID_REQUEST):
        await stage_uploads(tenant)
    assert await tenant.rows("sets") == []
