"""Ranges of files, lists of sets, and download URLs."""

import asyncio
from typing import Any

import pytest
import urllib3
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import KIB, BlobService, Tenant, new_set_id, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import PART, WHOLE, content, ref, stage_uploads, upload


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 0, (0, 700)),
        (0, 10, (0, 10)),
        (690, 0, (690, 700)),
        (690, 99, (690, 700)),
        (300, 300, (300, 600)),
        (700, 0, (700, 700)),
        (0, 700, (0, 700)),
    ],
)
async def test_ReadFile__ranges(tenant: Tenant, offset: int, length: int, expected: tuple[int, int]) -> None:
    data = content(700 * KIB).hex()[: 700 * KIB]
    staged = await tenant.stage(text("a", data))

    pieces = await tenant.pieces(staged.set_id, "a", offset=offset * KIB, length=length * KIB)

    assert b"".join(pieces) == data[expected[0] * KIB : expected[1] * KIB].encode()
    assert len(pieces) >= 1
    assert max(map(len, pieces)) <= 256 * KIB


async def test_ReadFile__range_of_an_uploaded_file_across_its_parts(blobs: BlobService) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    data = content(2 * PART + 5)
    staged = await stage_uploads(tenant, ref((await upload(tenant, data)).upload_id))

    assert await tenant.read(staged.set_id, "big.bin", offset=PART - 3, length=9) == data[PART - 3 : PART + 6]
    assert await tenant.read(staged.set_id, "big.bin", offset=2 * PART) == data[-5:]


async def test_ReadFile__range_of_an_empty_file(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", ""))

    assert await tenant.pieces(staged.set_id, "a", length=5) == [b""]


async def test_ReadFile__range_behind_the_end(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "abc"))

    with refused(Reason.INVALID_REQUEST) as errors:
        await tenant.read(staged.set_id, "a", offset=4)
    assert [violation.field for violation in errors[0].violations] == ["offset"]


async def test_ReadFile__a_range_that_covers_the_file_is_verified_and_a_smaller_one_is_not(
    tenant: Tenant,
) -> None:
    staged = await tenant.stage(text("a", "right"))
    tenant.overwrite(staged.files[0].sha256, b"wrong")

    for span in ({}, {"length": 5}, {"length": 99}):
        with refused(Reason.STORED_HASH_DIFFERS):
            await tenant.read(staged.set_id, "a", **span)
    assert await tenant.read(staged.set_id, "a", length=4) == b"wron"
    tenant.overwrite(staged.files[0].sha256, b"wr")
    with refused(Reason.STORED_HASH_DIFFERS):
        await tenant.read(staged.set_id, "a", offset=1, length=3)


async def list_sets(tenant: Tenant, **query: Any) -> pb.ListSetsResponse:
    answer: pb.ListSetsResponse = await tenant.call(
        "ListSets", pb.ListSetsRequest(**query), token=tenant.client_token()
    )
    return answer


async def test_ListSets__pages(tenant: Tenant, blobs: BlobService) -> None:
    staged = await asyncio.gather(*(tenant.stage(text("a", f"{n}")) for n in range(5)))
    await tenant.release(new_set_id())
    other = blobs.tenant()
    await other.prepare()

    expected = sorted((one.set_id for one in staged), reverse=True)
    assert [one.set_id for one in (await list_sets(tenant)).sets] == expected
    seen, token = [], ""
    while True:
        page = await list_sets(tenant, page_size=2, page_token=token)
        assert len(page.sets) <= 2
        seen += [one.set_id for one in page.sets]
        token = page.next_page_token
        if not token:
            break
    assert seen == expected
    found = await list_sets(tenant, session_id=staged[3].session_id)
    assert list(found.sets) == [staged[3]]
    assert list((await list_sets(other)).sets) == []


async def test_ListSets__shows_released_sets_and_hides_tombstones_of_unknown_sets(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    await tenant.release(staged.set_id)
    await tenant.release(new_set_id())

    (found,) = (await list_sets(tenant)).sets
    assert (found.set_id, found.state) == (staged.set_id, attachment_pb2.SET_STATE_RELEASED)


async def test_ListSets__malformed_token_and_wrong_caller(tenant: Tenant) -> None:
    with refused(Reason.INVALID_REQUEST):
        await list_sets(tenant, page_token="x")
    with refused(Reason.CALLER_NOT_ALLOWED):
        await tenant.call("ListSets", pb.ListSetsRequest(), token=tenant.run_token(new_id(IdKind.SESSION)))


async def url_of(tenant: Tenant, set_id: str, name: str) -> pb.CreateDownloadUrlResponse:
    request = pb.CreateDownloadUrlRequest(set_id=set_id, name=name)
    answer: pb.CreateDownloadUrlResponse = await tenant.call(
        "CreateDownloadUrl", request, token=tenant.client_token()
    )
    return answer


async def test_CreateDownloadUrl__disabled_by_default(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))

    with refused(Reason.DOWNLOAD_URLS_DISABLED):
        await url_of(tenant, staged.set_id, "a")


async def test_CreateDownloadUrl__serves_only_the_file_until_it_expires(tenant: Tenant) -> None:
    await tenant.prepare(2, download_url_lifetime=Duration(seconds=60))
    staged = await tenant.stage(text("é.html", "<script>", "text/html"), text("b", "other"))
    answer = await url_of(tenant, staged.set_id, "é.html")
    await tenant.prepare(3, download_url_lifetime=Duration(seconds=1))
    short = await url_of(tenant, staged.set_id, "é.html")

    assert short.expire_time.seconds - utc_now().timestamp() <= 1
    with urllib3.PoolManager() as http:
        found = await asyncio.to_thread(http.request, "GET", answer.url)
        assert (found.status, found.data) == (200, b"<script>")
        assert found.headers["Content-Type"] == "application/octet-stream"
        assert found.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%C3%A9.html"
        elsewhere = answer.url.replace(staged.files[0].sha256, staged.files[1].sha256)
        assert (await asyncio.to_thread(http.request, "GET", elsewhere)).status == 403
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(http.request, "GET", short.url)).status != 403:
                await asyncio.sleep(0.1)


async def test_CreateDownloadUrl__released_or_lost(tenant: Tenant) -> None:
    await tenant.prepare(2, download_url_lifetime=Duration(seconds=60))
    released, lost = await tenant.stage(text("a", "x")), await tenant.stage(text("a", "y"))
    await tenant.release(released.set_id)
    tenant.lose(lost.files[0].sha256)

    with refused(Reason.ATTACHMENT_SET_STATE):
        await url_of(tenant, released.set_id, "a")
    with refused(Reason.STORED_HASH_DIFFERS):
        await url_of(tenant, lost.set_id, "a")
    with refused(Reason.NOT_FOUND):
        await url_of(tenant, lost.set_id, "b")
