"""Concurrent calls of a tenant wait for their places, and its streams of requests are slowed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadChunk
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.call_limits import STREAM_MESSAGE_BYTES
from spawnmesh_runtime.caller import caller_tenant_id
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.waiting import eventually

MIB = 1024 * 1024


class Uploads:
    """A servicer of UploadFile whose calls go on until the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.received = 0
        self.received_by: Counter[str] = Counter()
        self.go_on = asyncio.Event()

    async def upload(self, messages: AsyncIterator[Any], context: Any) -> blob_pb.UploadFileResponse:
        self.begun.append(caller_tenant_id())
        async for message in messages:
            self.received += message.ByteSize()
            self.received_by[caller_tenant_id()] += 1
        await self.go_on.wait()
        return blob_pb.UploadFileResponse()


@pytest.fixture
async def uploads(serve: Callable[..., Any], peer_of: Any) -> Any:
    @asynccontextmanager
    async def opened(**limits: int) -> AsyncIterator[tuple[Uploads, Peer]]:
        servicer = Uploads()
        served = await serve(call_limits={"transfer": limits})
        served.files.uploading = servicer.upload
        async with peer_of(served.target, name="attachment-blob") as peer:
            yield servicer, peer
            servicer.go_on.set()

    return opened


async def send(
    peer: Peer, token: str, *messages: blob_pb.UploadFileRequest, timeout_seconds: float = 60
) -> Any:
    async def requests() -> AsyncIterator[blob_pb.UploadFileRequest]:
        for message in messages:
            yield message

    stub = blob_grpc.AttachmentBlobServiceStub(peer.channel)
    with use_token(token):
        return await peer.unary(stub.UploadFile, requests(), timeout_seconds=timeout_seconds)


async def test_a_tenant_waits_for_a_place_and_its_runs_and_other_tenants_do_not(
    uploads: Any, keys: Any
) -> None:
    acme, beta = (keys.minter("client").client_token(tenant, "ann", 60) for tenant in ("acme", "beta"))
    run = keys.minter("session").run_token("acme", "ses_" + "0" * 26, "run_" + "0" * 26, 1, 60)
    async with uploads(concurrent_call_count=1) as (servicer, peer):
        calls = [asyncio.create_task(send(peer, acme)) for _ in range(2)]
        await eventually(lambda: servicer.begun == ["acme"])
        calls.append(asyncio.create_task(send(peer, beta)))
        await eventually(lambda: servicer.begun == ["acme", "beta"])
        calls.append(asyncio.create_task(send(peer, run)))
        await eventually(lambda: servicer.begun == ["acme", "beta", "acme"])
        servicer.go_on.set()
        await asyncio.gather(*calls)
        assert servicer.begun == ["acme", "beta", "acme", "acme"]


async def test_a_waiting_call_gives_up_at_its_deadline_and_leaves_its_place(uploads: Any, keys: Any) -> None:
    acme = keys.minter("client").client_token("acme", "ann", 60)
    async with uploads(concurrent_call_count=1) as (servicer, peer):
        held = asyncio.create_task(send(peer, acme))
        await eventually(lambda: servicer.begun == ["acme"])
        with pytest.raises(MeshError) as refused:
            await send(peer, acme, timeout_seconds=0.3)
        assert refused.value.reason is Reason.DEADLINE_EXCEEDED
        servicer.go_on.set()
        await held
        await send(peer, acme)


async def test_a_stream_is_read_to_its_end_and_the_next_call_waits_for_its_bytes(
    uploads: Any, keys: Any
) -> None:
    acme, beta = (keys.minter("client").client_token(tenant, "ann", 60) for tenant in ("acme", "beta"))
    chunk, large = (
        blob_pb.UploadFileRequest(chunk=UploadChunk(data=bytes(size))) for size in (MIB + 1, 2 * MIB)
    )
    async with uploads(bytes_per_second=MIB) as (servicer, peer):
        servicer.go_on.set()

        async def refusal() -> MeshError | None:
            """Return the refusal of the next call, unless it comes too late."""
            # The burst and a moment pay for the first chunk. The second one is owed for two seconds.
            before = servicer.received
            await send(peer, acme, chunk, large)
            assert servicer.received - before > 3 * MIB
            try:
                await send(peer, acme)
            except MeshError as error:
                return error
            return None

        refused = await eventually(refusal)
        await send(peer, beta)
    assert refused is not None
    assert refused.reason is Reason.RATE_LIMITED
    assert refused.facts["limit"] == "bytes_per_second"


async def test_a_stream_of_one_byte_chunks_is_slowed_and_that_of_another_tenant_is_not(
    uploads: Any, keys: Any
) -> None:
    acme, beta = (keys.minter("client").client_token(tenant, "ann", 60) for tenant in ("acme", "beta"))
    one_byte = blob_pb.UploadFileRequest(chunk=UploadChunk(data=b"a"))
    at_once = MIB // STREAM_MESSAGE_BYTES
    async with uploads(bytes_per_second=MIB) as (servicer, peer):
        servicer.go_on.set()
        began = monotonic_seconds()
        # It takes minutes: the burst pays for the first messages, and then time for each further one.
        slowed = asyncio.create_task(send(peer, acme, *[one_byte] * 1000, timeout_seconds=300))
        await eventually(lambda: servicer.received_by["acme"] > 2 * at_once)
        await send(peer, beta, *[one_byte] * at_once)
        assert servicer.received_by["beta"] == at_once
        received, seconds = servicer.received_by["acme"], monotonic_seconds() - began
        assert received <= at_once * (1 + seconds) + 1
        slowed.cancel()


async def test_refusals_are_logged_once_with_the_tenant_and_not_as_calls(
    uploads: Any, keys: Any, events: list[dict[str, Any]]
) -> None:
    acme = keys.minter("client").client_token("acme", "ann", 60)
    async with uploads(calls_per_second=1) as (servicer, peer):
        servicer.go_on.set()
        answers = await asyncio.gather(*(send(peer, acme) for _ in range(30)), return_exceptions=True)
    refused = len([answer for answer in answers if isinstance(answer, MeshError)])
    assert refused > 1
    limited = [event for event in events if event["event"] == "calls_limited"]
    assert [(event["tenant"], event["rpc_class"], event["limit"]) for event in limited][:1] == [
        ("acme", "TRANSFER", "calls_per_second")
    ]
    assert len(limited) < refused
    assert not any(event.get("reason") == "RATE_LIMITED" for event in events if event["event"] == "rpc")
