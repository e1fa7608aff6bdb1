"""Each owner of uploads, a session or the tenant's clients, has its own upload ids."""

import asyncio
import hashlib
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant, refused
from tests.support.attachment_blob.uploads import (
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
from tests.support.waiting import eventually

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE
CLIENTS = ""
ONE, OTHER = new_id(IdKind.SESSION), new_id(IdKind.SESSION)


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant that may upload large files, of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


def token_of(tenant: Tenant, owner: str) -> str:
    return tenant.run_token(owner) if owner else tenant.client_token()


async def hand_over(tenant: Tenant, owner: str, file: Attachment) -> upload_pb2.Upload:
    async with asyncio.timeout(60):
        return await upload_file(TokenPeer(tenant.service.peer.connection, token_of(tenant, owner)), file)


async def spec_of_library(tenant: Tenant, file: Attachment) -> upload_pb2.UploadSpec:
    """Return the spec that the client library announces for the file."""
    elsewhere = tenant.service.tenant()
    await elsewhere.prepare(**WHOLE)
    done = await hand_over(elsewhere, CLIENTS, file)
    return upload_pb2.UploadSpec(
        upload_id=done.upload_id,
        name=done.name,
        size_bytes=done.size_bytes,
        sha256=done.sha256,
        mime_type=done.mime_type,
    )


@pytest.mark.parametrize("size", [2000, 2 * PART + 1], ids=["one-part", "parts"])
@pytest.mark.parametrize(
    "owners", [(ONE, OTHER, CLIENTS), (CLIENTS, ONE, OTHER)], ids=["runs-first", "client-first"]
)
async def test_owners_upload_the_same_file_in_sequence(
    tenant: Tenant, owners: tuple[str, ...], size: int
) -> None:
    file = Attachment("report.bin", content(size))

    done = [await hand_over(tenant, owner, file) for owner in owners]

    assert [(one.upload_id, one.state) for one in done] == [(done[0].upload_id, COMPLETE)] * 3
    for owner, one in zip(owners, done, strict=True):
        assert await hand_over(tenant, owner, file) == one, "a repeat finds its owner's"
        assert await get_upload(tenant, one.upload_id, token=token_of(tenant, owner)) == one
        staged = await stage_uploads(tenant, ref(one.upload_id), uploader_session_id=owner)
        assert await tenant.read(staged.set_id, file.name) == file.data
    assert (len(await tenant.rows("uploads")), len(tenant.object_keys())) == (3, 1)


async def test_owners_upload_the_same_file_concurrently(tenant: Tenant) -> None:
    file = Attachment("report.bin", content(2 * PART + 1))
    owners = [CLIENTS, ONE, OTHER] * 2

    done = await asyncio.gather(*(hand_over(tenant, owner, file) for owner in owners))

    assert {one.state for one in done} == {COMPLETE}
    assert sorted(row["session_id"] for row in await tenant.rows("uploads")) == sorted({CLIENTS, ONE, OTHER})
    # A stream whose bytes another one stored in the meantime may have left it.
    await tenant.collect()
    assert len(tenant.object_keys()) == 1
    assert (tenant.unfinished_multiparts(), await tenant.rows("upload_parts")) == ([], [])


@pytest.mark.parametrize("squatter", [CLIENTS, ONE], ids=["client", "run"])
async def test_an_upload_id_of_one_owner_is_free_for_other_owners(tenant: Tenant, squatter: str) -> None:
    file = Attachment("report.bin", content(2000))
    spec = await spec_of_library(tenant, file)
    taken = upload_pb2.UploadSpec(
        upload_id=spec.upload_id, name="x", size_bytes=1, sha256=hashlib.sha256(b"x").hexdigest()
    )
    await send(tenant, begin(taken), token=token_of(tenant, squatter))

    for owner in {CLIENTS, ONE, OTHER} - {squatter}:
        assert (await hand_over(tenant, owner, file)).state == COMPLETE

    own = await get_upload(tenant, spec.upload_id, token=token_of(tenant, squatter))
    assert (own.name, own.size_bytes, own.state) == ("x", 1, OPEN)
    with refused(Reason.ALREADY_EXISTS, upload_id=spec.upload_id):
        await hand_over(tenant, squatter, file)


@pytest.mark.parametrize("size", [2000, 2 * PART + 1], ids=["one-part", "parts"])
async def test_a_run_that_announced_a_hash_does_not_get_another_owners_bytes(
    tenant: Tenant, size: int
) -> None:
    secret = Attachment("payroll.bin", content(size))
    spec = await spec_of_library(tenant, secret)
    run = tenant.run_token(ONE)
    assert (await send(tenant, begin(spec), token=run)).state == OPEN

    for owner in (CLIENTS, OTHER):
        assert (await hand_over(tenant, owner, secret)).state == COMPLETE

    for found in (
        await get_upload(tenant, spec.upload_id, token=run),
        await send(tenant, begin(spec), token=run),
    ):
        assert (found.state, found.durable_bytes) == (OPEN, 0)
    with refused(Reason.UPLOAD_INCOMPLETE, upload_id=spec.upload_id):
        await stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=ONE)
    assert (await send(tenant, begin(spec), chunks(secret.data), finish(), token=run)).state == COMPLETE


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "open"])
async def test_an_upload_is_not_found_by_other_owners(tenant: Tenant, is_complete: bool) -> None:
    data = content(2000)
    spec = spec_of(data)
    messages = [*chunks(data), finish()] if is_complete else []
    await send(tenant, begin(spec), messages, token=tenant.run_token(ONE))

    for owner in (CLIENTS, OTHER):
        with refused(Reason.NOT_FOUND, id=spec.upload_id):
            await get_upload(tenant, spec.upload_id, token=token_of(tenant, owner))
        with refused(Reason.NOT_FOUND):
            await stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=owner)
    assert (await send(tenant, begin(spec), token=tenant.run_token(OTHER))).state == OPEN


async def test_runs_of_one_session_resume_each_others_uploads(tenant: Tenant) -> None:
    data = content(PART + 1)
    spec = spec_of(data)
    await send(tenant, begin(spec), token=tenant.client_token())
    assert (await send(tenant, begin(spec), chunks(data), token=tenant.run_token(ONE))).durable_bytes == PART

    done = await send(tenant, begin(spec), chunks(data, start=PART), finish(), token=tenant.run_token(ONE))

    assert done.state == COMPLETE
    assert (await get_upload(tenant, spec.upload_id)).state == OPEN


async def test_a_stream_of_a_removed_upload_does_not_write_to_another_owners(tenant: Tenant) -> None:
    data, go_on = content(2 * PART), asyncio.Event()
    spec = spec_of(data)

    async def slow() -> Any:
        async def messages() -> Any:
            for message in (begin(spec), *chunks(data, end=PART)):
                yield message
            await go_on.wait()
            for message in (*chunks(data, start=PART), finish()):
                yield message

        return await tenant.call("UploadFile", messages(), token=tenant.run_token(ONE), timeout_seconds=60)

    async def part_is_durable() -> bool:
        return bool(await tenant.rows("upload_parts"))

    writing = asyncio.ensure_future(slow())
    await eventually(part_is_durable)
    await expire(tenant)
    assert await tenant.collect() == {"expired_upload_count": 1}
    await send(tenant, begin(spec), list(chunks(data, end=PART)))
    go_on.set()

    with refused(Reason.UPLOAD_TAKEN_OVER, upload_id=spec.upload_id):
        await writing
    assert (await get_upload(tenant, spec.upload_id)).durable_bytes == PART
    assert (await send(tenant, begin(spec), chunks(data, start=PART), finish())).state == COMPLETE


async def expire(tenant: Tenant, owner: str | None = None) -> None:
    """Let the uploads of one owner, or of all, expire."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            "update uploads set expire_time = now() where coalesce(%s::text, session_id) = session_id",
            (owner,),
        )


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "open"])
@pytest.mark.parametrize("owner", [CLIENTS, ONE], ids=["client", "run"])
async def test_an_upload_expires_independently_of_another_owners_with_the_same_id(
    tenant: Tenant, owner: str, is_complete: bool
) -> None:
    data = content(PART + 1)
    spec = spec_of(data)
    messages = [*chunks(data), *([finish()] if is_complete else [])]
    for each in (CLIENTS, ONE):
        await send(tenant, begin(spec), messages, token=token_of(tenant, each))
    await expire(tenant, owner)

    assert await tenant.collect() == {"expired_upload_count": 1}

    with refused(Reason.NOT_FOUND):
        await get_upload(tenant, spec.upload_id, token=token_of(tenant, owner))
    other = token_of(tenant, ONE if owner == CLIENTS else CLIENTS)
    found = await get_upload(tenant, spec.upload_id, token=other)
    assert (found.state, found.durable_bytes) == ((COMPLETE, len(data)) if is_complete else (OPEN, PART))
    start = found.durable_bytes
    assert (
        await send(
            tenant, begin(spec), [] if is_complete else [*chunks(data, start=start), finish()], token=other
        )
    ).state == COMPLETE
    again = await send(tenant, begin(spec), token=token_of(tenant, owner))
    assert again.state == (COMPLETE if owner == CLIENTS else OPEN)
    assert len(tenant.unfinished_multiparts()) == 0


async def test_wrong_bytes_of_one_owner_do_not_affect_another_owners_upload(tenant: Tenant) -> None:
    data = content(PART + 1)
    spec = spec_of(data)
    assert (await send(tenant, begin(spec), chunks(data))).durable_bytes == PART

    with refused(Reason.UPLOAD_HASH_DIFFERS):
        await send(tenant, begin(spec), chunks(content(PART + 1, 1)), finish(), token=tenant.run_token(ONE))

    assert (await get_upload(tenant, spec.upload_id)).durable_bytes == PART
    assert (await send(tenant, begin(spec), chunks(data, start=PART), finish())).state == COMPLETE


async def test_a_set_can_name_uploads_of_one_owner_only(tenant: Tenant) -> None:
    first, second = spec_of(b"first"), spec_of(b"second")
    for spec, data, owner in (
        (first, b"first", CLIENTS),
        (second, b"second", CLIENTS),
        (second, b"second", ONE),
    ):
        await send(tenant, begin(spec), chunks(data), finish(), token=token_of(tenant, owner))
    refs = [ref(first.upload_id, "a"), ref(second.upload_id, "b")]

    with refused(Reason.NOT_FOUND, id=first.upload_id):
        await stage_uploads(tenant, *refs, uploader_session_id=ONE)

    assert (await stage_uploads(tenant, *refs)).total_bytes == len(b"firstsecond")
