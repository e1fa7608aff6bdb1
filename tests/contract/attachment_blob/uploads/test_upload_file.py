"""UploadFile and GetUpload: what is stored, what an interruption leaves, and what is refused."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import (
    CHUNK,
    PART,
    WHOLE,
    begin,
    chunk,
    chunks,
    content,
    finish,
    get_upload,
    ref,
    send,
    spec_of,
    stage_uploads,
    upload,
)
from tests.support.waiting import eventually

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    """A tenant that may upload large files."""
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def until_durable(tenant: Tenant, upload_id: str, size: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(MeshError):  # The upload may not exist yet.
                if (await get_upload(tenant, upload_id)).durable_bytes >= size:
                    return
            await asyncio.sleep(0.01)


async def cut(tenant: Tenant, spec: upload_pb2.UploadSpec, data: bytes, end: int, durable: int) -> None:
    """Send chunks up to `end`, and cancel the stream as soon as `durable` bytes are durable."""
    sending = asyncio.ensure_future(send(tenant, begin(spec), chunks(data, end=end), hold=asyncio.Event()))
    if durable:
        await until_durable(tenant, spec.upload_id, durable)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("size", [0, 1, CHUNK, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 3])
async def test_UploadFile__complete_file(tenant: Tenant, size: int) -> None:
    data = content(size)

    done = await upload(tenant, data)

    assert (done.state, done.durable_bytes, done.size_bytes) == (COMPLETE, size, size)
    staged = await stage_uploads(tenant, ref(done.upload_id, "renamed"))
    assert [(file.name, file.size_bytes, file.sha256, file.mime_type) for file in staged.files] == [
        ("renamed", size, done.sha256, "application/x-test")
    ]
    assert await tenant.read(staged.set_id, "renamed") == data
    assert await tenant.left() == (1, 1, 1)
    assert await tenant.rows("upload_parts") == []


async def test_UploadFile__resumed_after_an_interruption(tenant: Tenant) -> None:
    data = content(3 * PART + 7)
    spec = spec_of(data)
    await cut(tenant, spec, data, 2 * PART + CHUNK, 2 * PART)
    found = await get_upload(tenant, spec.upload_id)
    assert (found.state, found.durable_bytes) == (OPEN, 2 * PART)

    done = await send(tenant, begin(spec), chunks(data, start=2 * PART), finish())

    assert done.state == COMPLETE
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == data


async def test_UploadFile__stream_without_finish_returns_the_durable_offset(tenant: Tenant) -> None:
    data = content(PART + CHUNK)
    spec = spec_of(data)

    assert (await send(tenant, begin(spec))).durable_bytes == 0
    assert (await send(tenant, begin(spec), chunks(data))).durable_bytes == PART
    assert (await send(tenant, begin(spec), chunks(data, start=PART), finish())).state == COMPLETE
    assert (await send(tenant, begin(spec))).durable_bytes == len(data)


async def test_UploadFile__finish_repeated_after_a_crash_between_object_and_row(tenant: Tenant) -> None:
    data = content(PART + 1)
    spec = spec_of(data)
    await send(tenant, begin(spec), chunks(data, end=PART))
    (row,) = await tenant.rows("uploads")
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            "insert into upload_parts values (%s, %s, 2, 1, 'etag')", (tenant.tenant_id, row["row_id"])
        )
    tenant.service.admin._abort_multipart_upload(tenant.bucket, row["object_key"], row["multipart_id"])
    tenant.put(row["object_key"], data)

    done = await send(tenant, begin(spec), finish())

    assert done.state == COMPLETE
    staged = await stage_uploads(tenant, ref(spec.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == data


async def test_UploadFile__stored_bytes_are_not_sent_again(tenant: Tenant) -> None:
    data = content(2000)
    await upload(tenant, data)
    before = tenant.object_keys()

    again = await send(tenant, begin(spec_of(data, name="other")))

    assert (again.state, again.durable_bytes, again.name) == (COMPLETE, 2000, "other")
    assert tenant.object_keys() == before
    staged = await tenant.stage(text("t", "inline"))
    known = await send(tenant, begin(spec_of(b"inline")))
    assert known.state == COMPLETE
    assert await tenant.release(staged.set_id) == 0  # The upload refers to the bytes.
    kept = await stage_uploads(tenant, ref(known.upload_id))
    assert await tenant.read(kept.set_id, "big.bin") == b"inline"


async def test_UploadFile__stored_hash_with_another_size_does_not_match(tenant: Tenant) -> None:
    data = content(2000)
    await upload(tenant, data)

    assert (await send(tenant, begin(spec_of(data, size_bytes=1999)))).state == OPEN


async def test_UploadFile__concurrent_uploads_of_the_same_bytes_store_one_object(tenant: Tenant) -> None:
    data = content(PART + 9)

    done = await asyncio.gather(*(upload(tenant, data) for _ in range(3)))

    assert {one.state for one in done} == {COMPLETE}
    assert await tenant.left() == (0, 1, 1)
    for one in done:
        staged = await stage_uploads(tenant, ref(one.upload_id))
        assert await tenant.read(staged.set_id, "big.bin") == data


async def test_UploadFile__two_streams_of_one_upload(tenant: Tenant) -> None:
    data = content(2 * PART + 1)
    spec = spec_of(data)
    go_on = asyncio.Event()

    async def slow() -> Any:
        async def messages() -> Any:
            yield begin(spec)
            for each in chunks(data, end=PART):
                yield each
            await go_on.wait()
            for each in chunks(data, start=PART):
                yield each
            yield finish()

        return await tenant.call("UploadFile", messages(), token=tenant.client_token(), timeout_seconds=60)

    first = asyncio.ensure_future(slow())
    await until_durable(tenant, spec.upload_id, PART)
    assert (await send(tenant, begin(spec), chunks(data, start=PART, end=PART + CHUNK))).durable_bytes == PART
    go_on.set()

    with refused(Reason.UPLOAD_TAKEN_OVER, upload_id=spec.upload_id):
        await first
    assert (await send(tenant, begin(spec), chunks(data, start=PART), finish())).state == COMPLETE


async def test_UploadFile__wrong_bytes_of_a_stale_stream_do_not_remove_the_upload(
    tenant: Tenant,
) -> None:
    spec, was_taken_over = spec_of(b"right"), asyncio.Event()

    async def wrong() -> Any:
        async def messages() -> Any:
            yield begin(spec)
            yield chunk(0, b"wrong")
            await was_taken_over.wait()
            yield finish()

        return await tenant.call("UploadFile", messages(), token=tenant.client_token(), timeout_seconds=60)

    async def generation() -> int:
        return sum([row["generation"] for row in await tenant.rows("uploads")])

    async def is_writing(streams: int) -> bool:
        return await generation() == streams

    go_on = asyncio.Event()
    first = asyncio.ensure_future(wrong())
    await eventually(lambda: is_writing(1))
    right = asyncio.ensure_future(send(tenant, begin(spec), chunk(0, b"ri"), hold=go_on))
    await eventually(lambda: is_writing(2))
    was_taken_over.set()
    with refused(Reason.UPLOAD_TAKEN_OVER):
        await first
    go_on.set()

    assert (await right).durable_bytes == 0
    assert (await send(tenant, begin(spec), chunk(0, b"right"), finish())).state == COMPLETE


async def test_UploadFile__begun_again_after_the_bucket_aborted_the_multipart_upload(tenant: Tenant) -> None:
    data = content(2 * PART + 1)
    spec = spec_of(data)
    assert (await send(tenant, begin(spec), chunks(data, end=PART))).durable_bytes == PART
    (row,) = await tenant.rows("uploads")
    tenant.service.admin._abort_multipart_upload(tenant.bucket, row["object_key"], row["multipart_id"])

    with refused(Reason.UPLOAD_TAKEN_OVER):
        await send(tenant, begin(spec), chunks(data, start=PART), finish())

    assert await tenant.rows("uploads") == []
    assert (await send(tenant, begin(spec), chunks(data), finish())).state == COMPLETE


async def test_UploadFile__slow_senders_of_one_tenant_do_not_block_other_tenants(
    databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path
) -> None:
    async with open_blob_service(databases["attachment_blob"], s3, keys, upload_max_streams=2) as service:
        slow, other = service.tenant(), service.tenant()
        await slow.prepare()
        await other.prepare()
        hold = asyncio.Event()
        specs = [spec_of(content(10, seed)) for seed in range(3)]
        streams = [
            asyncio.ensure_future(send(slow, begin(spec), chunk(0, content(10, seed)), hold=hold))
            for seed, spec in enumerate(specs)
        ]

        async def all_began() -> bool:
            return len(await slow.rows("uploads")) == len(specs)

        await eventually(all_began)
        assert (await upload(other, b"quick")).state == COMPLETE
        hold.set()
        await asyncio.gather(*streams)


@pytest.mark.parametrize(
    ("wrong", "reason", "facts"),
    [
        (chunk(0, b"abc", crc32c=1), "UPLOAD_CRC_DIFFERS", {"offset": "0"}),
        (chunk(1, b"abc"), "UPLOAD_OFFSET_DIFFERS", {"offset": "1", "expected_offset": "0"}),
        (chunk(0, b"x" * 11), "UPLOAD_SIZE_EXCEEDED", {"size_bytes": "10"}),
        (finish(), "UPLOAD_INCOMPLETE", {"durable_bytes": "0", "size_bytes": "10"}),
        (begin(spec_of(b"")), "INVALID_REQUEST", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_UploadFile__refused_and_begun_again(
    tenant: Tenant, wrong: Any, reason: str, facts: dict[str, str]
) -> None:
    spec = spec_of(b"0123456789")

    with refused(Reason(reason), **facts):
        await send(tenant, begin(spec), [wrong])

    assert (await send(tenant, begin(spec), [chunk(0, b"0123456789")], finish())).state == COMPLETE


async def test_UploadFile__chunk_without_spec(tenant: Tenant) -> None:
    with refused(Reason.INVALID_REQUEST):
        await send(tenant, [chunk(0, b"x")])


@pytest.mark.parametrize("size", [10, PART + 1])
async def test_UploadFile__wrong_hash_leaves_nothing(tenant: Tenant, size: int) -> None:
    data = content(size)
    spec = spec_of(data, sha256="0" * 64)

    with refused(Reason.UPLOAD_HASH_DIFFERS, upload_id=spec.upload_id):
        await send(tenant, begin(spec), chunks(data), finish())

    with refused(Reason.NOT_FOUND):
        await get_upload(tenant, spec.upload_id)
    assert await tenant.left() == (0, 0, 0)
    assert tenant.unfinished_multiparts() == []
    assert (await upload(tenant, data, upload_id=spec.upload_id)).state == COMPLETE


async def test_UploadFile__wrong_hash_after_an_interruption_is_found_by_reading_the_object(
    tenant: Tenant,
) -> None:
    data, other = content(2 * PART), content(2 * PART, seed=1)
    spec = spec_of(data)
    await send(tenant, begin(spec), chunks(other, end=PART))

    with refused(Reason.UPLOAD_HASH_DIFFERS):
        await send(tenant, begin(spec), chunks(data, start=PART), finish())

    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize(
    ("limits", "spec", "reason"),
    [
        ({"enabled": False}, {}, "ATTACHMENTS_DISABLED"),
        ({}, {"name": "../x"}, "ATTACHMENTS_INVALID_NAME"),
        ({}, {"name": ""}, "ATTACHMENTS_INVALID_NAME"),
        ({}, {"mime_type": "x\n"}, "INVALID_REQUEST"),
        ({"max_file_bytes": 9}, {}, "ATTACHMENTS_FILE_BYTES_EXCEEDED"),
        ({"max_total_bytes": 9}, {}, "ATTACHMENTS_TOTAL_BYTES_EXCEEDED"),
    ],
)
async def test_UploadFile__refused_before_a_byte(
    blobs: BlobService, limits: dict[str, Any], spec: dict[str, Any], reason: str
) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(**limits)

    with refused(Reason(reason)):
        await upload(tenant, b"0123456789", **spec)
    assert await tenant.rows("uploads") == []


async def test_UploadFile__tenant_not_prepared(blobs: BlobService) -> None:
    with refused(Reason.UNKNOWN_TENANT):
        await upload(blobs.tenant(), b"x")


async def test_UploadFile__other_file_under_the_same_id(tenant: Tenant) -> None:
    done = await upload(tenant, b"one")

    for data, more in ((b"two", {}), (b"one", {"name": "other"})):
        with refused(Reason.ALREADY_EXISTS, upload_id=done.upload_id):
            await upload(tenant, data, upload_id=done.upload_id, **more)


async def test_UploadFile__content_is_marker(tenant: Tenant) -> None:
    with refused(Reason.ATTACHMENT_CONTENT_IS_MARKER):
        await upload(tenant, b'{"$redacted": "attachment"}')
    assert await tenant.left() == (0, 0, 0)


async def test_UploadFile__silent_sender(
    databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path
) -> None:
    async with open_blob_service(databases["attachment_blob"], s3, keys, upload_idle_seconds=2.0) as service:
        tenant = service.tenant()
        await tenant.prepare()
        spec = spec_of(b"0123456789")
        with refused(Reason.DEADLINE_EXCEEDED):
            await send(tenant, begin(spec), [chunk(0, b"01")], hold=asyncio.Event())
        assert (await send(tenant, begin(spec), [chunk(0, b"0123456789")], finish())).state == COMPLETE


async def test_uploads_are_found_by_their_owner_only(tenant: Tenant, blobs: BlobService) -> None:
    session_id = new_id(IdKind.SESSION)
    mine, other = tenant.run_token(session_id), tenant.run_token(new_id(IdKind.SESSION))
    spec = spec_of(b"mine")
    theirs = await upload(tenant, b"theirs")
    done = await send(tenant, begin(spec), chunks(b"mine"), finish(), token=mine)

    assert await get_upload(tenant, spec.upload_id, token=mine) == done
    for upload_id, token in (
        (spec.upload_id, other),
        (spec.upload_id, tenant.client_token()),
        (theirs.upload_id, mine),
    ):
        with refused(Reason.NOT_FOUND, id=upload_id):
            await get_upload(tenant, upload_id, token=token)
    for upload_id, uploader in ((theirs.upload_id, session_id), (spec.upload_id, "")):
        with refused(Reason.NOT_FOUND, id=upload_id):
            await stage_uploads(tenant, ref(upload_id), uploader_session_id=uploader)
    assert (await stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=session_id)).total_bytes == 4
    stranger = blobs.tenant()
    await stranger.prepare()
    with refused(Reason.NOT_FOUND):
        await get_upload(stranger, spec.upload_id)
