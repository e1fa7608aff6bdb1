"""Admission before reading: a waiting request is not read, and a refused one is not kept."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.server import build_server

from tests.support.waiting import eventually

STAGE = "spawnmesh.attachment_blob.v1.AttachmentBlobService/StageSet"


class Sets(blob_grpc.AttachmentBlobServiceServicer):
    """A service that accepts sets, and refuses those with two files."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def StageSet(self, request: Any, context: Any) -> Any:
        self.seen.append(len(request.items))
        if len(request.items) == 2:
            raise MeshError(Reason.CONFLICT, "no")
        return blob_pb.StageSetResponse()


class Turns:
    """Admissions that the test grants or refuses."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.refusal: MeshError | None = None
        self.waiting: list[str] = []
        self.running = 0

    @asynccontextmanager
    async def of(self, tenant_id: str) -> AsyncIterator[None]:
        self.waiting.append(tenant_id)
        await self.go_on.wait()
        if self.refusal is not None:
            raise self.refusal
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


@pytest.fixture
async def sets(process_named: Any, peer_of: Any) -> AsyncIterator[tuple[Sets, Turns, Any]]:
    server = build_server(process_named("transcript"))
    servicer, turns = Sets(), Turns()
    server.admit_before_read([STAGE], turns.of)
    blob_grpc.add_AttachmentBlobServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with peer_of(f"127.0.0.1:{port}", caller="session") as peer:
        yield servicer, turns, peer
    await server.stop(None)


def request(*items: InlineAttachment) -> blob_pb.StageSetRequest:
    ids = {"set_id": "att_" + "0" * 26, "session_id": "ses_" + "0" * 26}
    return blob_pb.StageSetRequest(**ids, items=items or [InlineAttachment(name="a", content="x")])


async def stage(peer: Any, sent: blob_pb.StageSetRequest) -> blob_pb.StageSetResponse:
    stub = blob_grpc.AttachmentBlobServiceStub(peer.channel)
    with impersonate("acme"):
        answer: blob_pb.StageSetResponse = await peer.unary(stub.StageSet, sent, timeout_seconds=60)
    return answer


async def test_a_request_is_read_and_answered_in_its_tenants_turn(sets: Any) -> None:
    servicer, turns, peer = sets
    turns.go_on.clear()
    call = asyncio.ensure_future(stage(peer, request()))
    while not turns.waiting:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert (turns.waiting, servicer.seen) == (["acme"], [])
    turns.go_on.set()
    assert await call == blob_pb.StageSetResponse()
    assert (servicer.seen, turns.running) == ([1], 0)


async def test_a_request_whose_turn_does_not_come_is_refused_unread(sets: Any) -> None:
    servicer, turns, peer = sets
    turns.refusal = MeshError(Reason.POOL_EXHAUSTED, "later", retry_after_seconds=2.0)
    with pytest.raises(MeshError) as caught:
        await stage(peer, request())
    assert (caught.value.reason, caught.value.retry_after_seconds) == (Reason.POOL_EXHAUSTED, 2.0)
    assert servicer.seen == []


async def test_a_request_is_validated_when_it_is_read(sets: Any) -> None:
    servicer, turns, peer = sets
    with pytest.raises(MeshError) as caught:
        await stage(peer, blob_pb.StageSetRequest())
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert (servicer.seen, turns.running) == ([], 0)


async def test_a_call_without_a_request_is_refused(sets: Any, keys: Any) -> None:
    servicer, _, peer = sets
    token = keys.minter("session").service_token("acme")
    without = peer.channel.stream_unary(
        f"/{STAGE}", response_deserializer=blob_pb.StageSetResponse.FromString
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await without(iter(()), metadata=(("authorization", f"Bearer {token}"),))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert servicer.seen == []


async def test_no_request_is_kept_until_garbage_is_collected(sets: Any) -> None:
    servicer, _, peer = sets
    gc.collect()
    gc.disable()
    try:
        await stage(peer, request())
        with pytest.raises(MeshError):
            await stage(peer, request(*(InlineAttachment(name=name, content="x") for name in "ab")))
        assert servicer.seen == [1, 2]
        # The work behind the answer ends.
        await eventually(lambda: not any(type(kept) is blob_pb.StageSetRequest for kept in gc.get_objects()))
    finally:
        gc.enable()
