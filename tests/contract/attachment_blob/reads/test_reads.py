"""Reads of one set and one upload, and the release of a blob."""

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import Tenant, new_set_id, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.payloads import got, put, release
from tests.support.attachment_blob.uploads import begin, content, get_upload, new_upload_id, send, spec_of


async def test_GetSet__the_receipt_of_the_staged_files(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a.txt", "hello"), text("b.txt", ""))
    found = await tenant.get(staged.set_id)
    assert found == staged
    assert [(file.name, file.size_bytes) for file in found.files] == [("a.txt", 5), ("b.txt", 0)]
    with refused(Reason.NOT_FOUND):
        await tenant.get(new_set_id())


async def test_GetUpload__the_progress_of_an_open_upload(tenant: Tenant) -> None:
    spec = spec_of(content(2_000))
    began = await send(tenant, begin(spec))
    found = await get_upload(tenant, spec.upload_id)
    assert found == began
    assert (found.upload_id, found.size_bytes, found.durable_bytes) == (spec.upload_id, 2_000, 0)
    with refused(Reason.NOT_FOUND):
        await get_upload(tenant, new_upload_id())


async def test_ReleaseBlob__the_bytes_go_once_and_unknown_blobs_are_no_error(tenant: Tenant) -> None:
    blob_id, _ = await put(tenant, b"payload")
    assert await got(tenant, blob_id) == b"payload"
    assert [await release(tenant, blob_id) for _ in range(2)] == [True, False]
    with refused(Reason.ATTACHMENT_SET_STATE):
        await got(tenant, blob_id)
    assert not await release(tenant, new_id(IdKind.BLOB))
