"""A run that knows a hash gets only the bytes of its own session."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import google_crc32c
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import blob_service_pb2, upload_pb2
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import BlobServiceStub
from spawnmesh_attachment_blob.domain.uploads import Chunk, Finish, UploadMessage, UploadSpec
from spawnmesh_attachment_blob.rpc.upload_file import receive_upload
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.attachment_blob.fakes import Steps, open_second_process
from tests.support.attachment_blob.fixtures import BlobService, Tenant, open_blob_service, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.uploads import (
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

OPEN, COMPLETE = upload_pb2.UPLOAD_STATE_OPEN, upload_pb2.UPLOAD_STATE_COMPLETE
SECRET = "what another session has"
SESSION_ID = new_id(IdKind.SESSION)


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    """A tenant that may upload large files."""
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def run_uploads(tenant: Tenant, data: bytes, session_id: str) -> upload_pb2.Upload:
    return await send(
        tenant, begin(spec_of(data)), chunks(data), finish(), token=tenant.run_token(session_id)
    )


async def kept_by_a_client(tenant: Tenant) -> None:
    await upload(tenant, SECRET.encode())


async def kept_by_another_run(tenant: Tenant) -> None:
    await run_uploads(tenant, SECRET.encode(), new_id(IdKind.SESSION))


async def kept_in_another_sessions_set(tenant: Tenant) -> None:
    await tenant.attach((await tenant.stage(text("a", SECRET))).set_id)


async def kept_in_a_released_set_of_its_own(tenant: Tenant) -> None:
    """The removal of its files was interrupted. Another session's set has the bytes, too."""
    await kept_in_another_sessions_set(tenant)
    own = await tenant.stage(text("a", SECRET), session_id=SESSION_ID)
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update sets set state = 'RELEASED' where set_id = %s", (own.set_id,))


async def kept_as_a_payload_of_its_transcript(tenant: Tenant) -> None:
    request = blob_service_pb2.PutBlobRequest(
        blob_id=new_id(IdKind.BLOB), session_id=SESSION_ID, data=SECRET.encode(), mime_type="text/plain"
    )
    minter = TokenMinter("transcript", tenant.service.keys / "transcript.pem")
    with use_token(minter.service_token(tenant.tenant_id)):
        peer = tenant.service.peer
        await peer.unary(BlobServiceStub(peer.channel).PutBlob, request, timeout_seconds=60)


Messages = Iterable[pb.UploadFileRequest]


async def answers_of(tenant: Tenant, spec: upload_pb2.UploadSpec, *streams: Messages) -> list[str]:
    """Return the answers of UploadFile, GetUpload and StageSet to a run, stream by stream."""
    token, answers = tenant.run_token(SESSION_ID), []

    async def note(answer: Awaitable[object]) -> None:
        try:
            found = await answer
        except MeshError as error:
            found = (
                error.reason,
                error.message,
                sorted(error.facts.items()),
                bool(error.retry_after_seconds),
            )
        if isinstance(found, upload_pb2.Upload):
            found.ClearField("create_time")
            found.ClearField("expire_time")
        answers.append(str(found).replace(spec.upload_id, "ID").replace(spec.sha256, "HASH"))

    for messages in streams:
        await note(send(tenant, begin(spec), messages, token=token))
        await note(get_upload(tenant, spec.upload_id, token=token))
        await note(stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=SESSION_ID))
    return answers


@pytest.mark.parametrize(
    "keep",
    [
        kept_by_a_client,
        kept_by_another_run,
        kept_in_another_sessions_set,
        kept_in_a_released_set_of_its_own,
        kept_as_a_payload_of_its_transcript,
    ],
    ids=lambda keep: keep.__name__,
)
async def test_a_run_gets_the_same_answers_for_foreign_bytes_as_for_unknown_ones(
    tenant: Tenant, keep: Callable[[Tenant], Awaitable[None]]
) -> None:
    await keep(tenant)
    before = await tenant.left()
    known, unknown = SECRET.encode(), b"x" * len(SECRET)
    wrong = [chunk(0, b"y" * len(SECRET))]
    streams: list[Messages] = [[], [finish()], wrong, [*wrong, finish()], [*wrong, finish()]]

    answers = await answers_of(tenant, spec_of(known), *streams)

    assert answers == await answers_of(tenant, spec_of(unknown), *streams)
    assert "state: UPLOAD_STATE_OPEN" in answers[0]
    assert "durable_bytes" not in answers[0]
    assert await tenant.left() == before
    assert {row["state"] for row in await tenant.rows("uploads")} <= {"COMPLETE"}


async def test_a_run_resumes_an_upload_of_foreign_bytes_at_its_durable_offset(tenant: Tenant) -> None:
    known, unknown = content(2 * PART + 1), content(2 * PART + 1, seed=1)
    await upload(tenant, known)
    before = tenant.object_keys()

    answers = [
        await answers_of(tenant, spec_of(data), [], list(chunks(data, end=1)), list(chunks(data, end=PART)))
        for data in (known, unknown)
    ]

    assert answers[0] == answers[1]
    assert f"durable_bytes: {PART}" in answers[0][-2]
    assert tenant.object_keys() == before


async def test_quotas_do_not_reveal_to_a_run_which_bytes_are_stored(
    databases: dict[str, ServiceDsn], s3: S3Endpoint, keys: Path
) -> None:
    async with open_blob_service(databases["attachment_blob"], s3, keys, upload_max_open=1) as service:
        tenant = service.tenant()
        await tenant.prepare(**WHOLE)
        await kept_by_a_client(tenant)
        await send(tenant, begin(spec_of(b"is open")))

        answers = await answers_of(tenant, spec_of(SECRET.encode()), [])

        assert answers == await answers_of(tenant, spec_of(b"x" * len(SECRET)), [])
        assert "open_uploads" in answers[0]
        assert (await send(tenant, begin(spec_of(SECRET.encode())))).state == COMPLETE


@pytest.mark.parametrize("size", [0, 24, PART, PART + 1])
@pytest.mark.parametrize("at_once", [True, False], ids=["at_once", "resumed"])
async def test_a_run_that_sends_foreign_bytes_refers_to_the_existing_object(
    tenant: Tenant, size: int, at_once: bool
) -> None:
    data = content(size)
    await upload(tenant, data)
    before, spec, token = tenant.object_keys(), spec_of(data), tenant.run_token(SESSION_ID)
    start = 0
    if not at_once:
        start = (
            await send(tenant, begin(spec), chunks(data, end=min(size, PART)), token=token)
        ).durable_bytes

    done = await send(tenant, begin(spec), chunks(data, start=start), finish(), token=token)

    assert (done.state, done.durable_bytes) == (COMPLETE, size)
    assert tenant.object_keys() == before
    assert (await tenant.left())[1:] == (1, 1)
    assert (tenant.unfinished_multiparts(), await tenant.rows("upload_parts")) == ([], [])
    staged = await stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=SESSION_ID)
    assert await tenant.read(staged.set_id, "big.bin", token=tenant.run_token(staged.session_id)) == data


@pytest.mark.parametrize("size", [24, PART + 1])
async def test_wrong_bytes_for_a_foreign_hash_are_refused_and_leave_nothing(
    tenant: Tenant, size: int
) -> None:
    data, other = content(size), content(size, seed=1)
    kept = await upload(tenant, data)
    before, spec, token = tenant.object_keys(), spec_of(data), tenant.run_token(SESSION_ID)

    with refused(Reason.UPLOAD_HASH_DIFFERS, upload_id=spec.upload_id):
        await send(tenant, begin(spec), chunks(other), finish(), token=token)

    with refused(Reason.NOT_FOUND):
        await get_upload(tenant, spec.upload_id, token=token)
    assert [row["upload_id"] for row in await tenant.rows("uploads")] == [kept.upload_id]
    assert (tenant.object_keys(), tenant.unfinished_multiparts()) == (before, [])
    staged = await stage_uploads(tenant, ref(kept.upload_id))
    assert await tenant.read(staged.set_id, "big.bin") == data


async def test_a_run_does_not_send_bytes_of_its_session_again(tenant: Tenant) -> None:
    token = tenant.run_token(SESSION_ID)
    await tenant.stage(text("a", "staged"), session_id=SESSION_ID)
    attached = await tenant.stage(text("a", "attached"), text("b", "beside it"), session_id=SESSION_ID)
    await tenant.attach(attached.set_id)
    await run_uploads(tenant, b"uploaded", SESSION_ID)
    before = tenant.object_keys()

    for data in (b"staged", b"attached", b"beside it", b"uploaded"):
        done = await send(tenant, begin(spec_of(data)), token=token)
        assert (done.state, done.durable_bytes) == (COMPLETE, len(data))
        kept = await stage_uploads(tenant, ref(done.upload_id), uploader_session_id=SESSION_ID)
        assert await tenant.read(kept.set_id, "big.bin") == data
    assert tenant.object_keys() == before
    # Bytes of an open upload are not bytes of the session yet.
    await send(tenant, begin(spec_of(SECRET.encode())), token=token)
    await kept_by_a_client(tenant)
    assert (await send(tenant, begin(spec_of(SECRET.encode())), token=token)).state == OPEN


async def test_a_client_does_not_send_bytes_of_a_run_again(tenant: Tenant) -> None:
    await kept_by_another_run(tenant)

    assert (await send(tenant, begin(spec_of(SECRET.encode())))).state == COMPLETE


async def test_an_upload_of_a_client_gives_a_run_no_bytes(tenant: Tenant) -> None:
    data, token = SECRET.encode(), tenant.run_token(SESSION_ID)
    spec = spec_of(data)
    await send(tenant, begin(spec), token=token)

    assert (await send(tenant, begin(spec), chunks(data), finish())).state == COMPLETE

    assert (await get_upload(tenant, spec.upload_id, token=token)).state == OPEN
    assert (await send(tenant, begin(spec), token=token)).state == OPEN


@pytest.mark.parametrize("owner", ["", new_id(IdKind.SESSION)], ids=["client", "run"])
@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "open"])
async def test_a_run_gets_the_same_answers_for_another_owners_id_as_for_a_free_one(
    tenant: Tenant, owner: str, is_complete: bool
) -> None:
    data, wrong = SECRET.encode(), [chunk(0, b"y" * len(SECRET))]
    taken, free = spec_of(data), spec_of(b"x" * len(SECRET))
    token = tenant.run_token(owner) if owner else tenant.client_token()
    await send(tenant, begin(taken), [*chunks(data), finish()] if is_complete else [], token=token)
    before = await get_upload(tenant, taken.upload_id, token=token)
    streams: list[Messages] = [[], [finish()], wrong, [*wrong, finish()]]

    assert await answers_of(tenant, taken, *streams) == await answers_of(tenant, free, *streams)
    assert await get_upload(tenant, taken.upload_id, token=token) == before


@pytest.mark.parametrize(
    ("size", "calls"),
    [(24, []), (PART + 1, ["_begin", "_put_part", "_put_part", "_abort"])],
    ids=["whole", "in_parts"],
)
async def test_stored_bytes_do_not_create_a_second_object(
    tenant: Tenant, size: int, calls: list[str]
) -> None:
    data, steps = content(size), Steps()
    await upload(tenant, data)
    spec = UploadSpec(new_id(IdKind.UPLOAD), "big.bin", size, hashlib.sha256(data).hexdigest(), "")

    async def messages() -> AsyncIterator[UploadMessage]:
        yield spec
        for at in range(0, size, PART):
            piece = data[at : at + PART]
            yield Chunk(at, piece, google_crc32c.value(piece))
        yield Finish()

    async with open_second_process(tenant.service, life=steps) as deps:
        done = await receive_upload(messages(), tenant.tenant_id, SESSION_ID, deps)

    assert done.state.value == "COMPLETE"
    sent = [name.removeprefix("before ") for name in steps.names if name.startswith("before ")]
    assert [name for name in sent if name not in ("a transaction", "a commit")] == calls
