"""A caller that is still sending receives the real error, not INTERNAL or CANCELLED."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

TRIES = 40
SPEC = blob_pb.UploadFileRequest(
    spec=upload_pb2.UploadSpec(upload_id="upl_" + "0" * 26, name="a", size_bytes=1, sha256="0" * 64)
)
CHUNK = blob_pb.UploadFileRequest(chunk=upload_pb2.UploadChunk(data=bytes(1024 * 1024)))

Upload = Callable[[str], Awaitable[blob_pb.UploadFileResponse]]


async def messages() -> AsyncIterator[blob_pb.UploadFileRequest]:
    yield SPEC
    while True:
        yield CHUNK


@pytest.fixture
def upload(peer_of: Any, keys: Any) -> Upload:
    async def to(target: str) -> blob_pb.UploadFileResponse:
        async with peer_of(target) as peer:
            method = cast(Any, blob_grpc.AttachmentBlobServiceStub(peer.channel).UploadFile)
            with use_token(keys.minter("client").client_token("acme", "ann", 60)):
                answer: blob_pb.UploadFileResponse = await peer.unary(method, messages(), timeout_seconds=60)
        return answer

    return to


async def heard(upload: Upload, target: str) -> str:
    try:
        return (await upload(target)).upload.upload_id
    except MeshError as error:
        return f"{error.reason} {error.facts}"


@pytest.mark.parametrize("taken", [1, 3])
async def test_refusal_reaches_a_caller_that_is_still_sending(serve: Any, upload: Upload, taken: int) -> None:
    served = await serve()

    async def refuse(sent: AsyncIterator[Any], context: Any) -> Any:
        for _ in range(taken):
            await anext(sent)
        raise MeshError(Reason.UPLOAD_OFFSET_DIFFERS, "elsewhere", facts={"at": "7"})

    served.files.uploading = refuse

    outcomes = Counter([await heard(upload, served.target) for _ in range(TRIES)])

    assert outcomes == {"UPLOAD_OFFSET_DIFFERS {'at': '7'}": TRIES}


async def test_answer_reaches_a_caller_that_is_still_sending(serve: Any, upload: Upload) -> None:
    served = await serve()

    async def answer(sent: AsyncIterator[Any], context: Any) -> Any:
        await anext(sent)
        return blob_pb.UploadFileResponse(upload=upload_pb2.Upload(upload_id="there"))

    served.files.uploading = answer

    outcomes = Counter([await heard(upload, served.target) for _ in range(TRIES)])

    assert outcomes == {"there": TRIES}


async def test_server_that_goes_is_unavailable_to_a_caller_that_is_still_sending(
    serve: Any, upload: Upload
) -> None:
    outcomes: Counter[str] = Counter()
    for _ in range(TRIES // 2):
        served = await serve()
        reached = asyncio.Event()

        async def take(sent: AsyncIterator[Any], context: Any, reached: asyncio.Event = reached) -> Any:
            async for _ in sent:
                reached.set()

        served.files.uploading = take
        hearing = asyncio.create_task(heard(upload, served.target))
        await reached.wait()
        await served.server.stop(None)
        outcomes[await hearing] += 1

    assert outcomes == {"DEPENDENCY_UNAVAILABLE {'dependency': 'plugin'}": TRIES // 2}


async def test_what_keeps_a_message_from_being_made_reaches_the_caller(
    serve: Any, peer_of: Any, keys: Any
) -> None:
    served = await serve()
    ended = asyncio.Event()

    async def take(sent: AsyncIterator[Any], context: Any) -> Any:
        try:
            async for _ in sent:
                pass
        finally:
            ended.set()

    served.files.uploading = take

    async def unreadable() -> AsyncIterator[blob_pb.UploadFileRequest]:
        yield SPEC
        raise OSError("the disk is gone")

    async with peer_of(served.target) as peer:
        method = cast(Any, blob_grpc.AttachmentBlobServiceStub(peer.channel).UploadFile)
        with (
            use_token(keys.minter("client").client_token("acme", "ann", 60)),
            pytest.raises(OSError, match="the disk is gone"),
        ):
            await peer.unary(method, unreadable(), timeout_seconds=60)
    async with asyncio.timeout(60):
        await ended.wait()


async def test_sender_that_falls_silent_after_its_first_message_is_refused(
    serve: Any, peer_of: Any, keys: Any
) -> None:
    served = await serve(message_timeout_seconds=0.5)
    taken = list[blob_pb.UploadFileRequest]()

    async def take(sent: AsyncIterator[Any], context: Any) -> Any:
        async for message in sent:
            taken.append(message)

    served.files.uploading = take

    async def silent() -> AsyncIterator[blob_pb.UploadFileRequest]:
        yield SPEC
        await asyncio.Event().wait()

    async with peer_of(served.target) as peer:
        method = cast(Any, blob_grpc.AttachmentBlobServiceStub(peer.channel).UploadFile)
        token = keys.minter("client").client_token("acme", "ann", 60)
        with use_token(token), pytest.raises(MeshError) as caught:
            await peer.unary(method, silent(), timeout_seconds=60)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert caught.value.facts == {"message_timeout_seconds": "0.5"}
    assert taken == [SPEC]
