"""Streams run within the interceptors until they end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from opentelemetry.trace import SpanKind
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.telemetry import current_trace_id

REQUEST = blob_pb.ReadFileRequest(set_id="att_" + "0" * 26, name="a.txt")


async def some(*parts: bytes, then: BaseException | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if then is not None:
        raise then


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.to_thread(lambda: None)


async def collect(into: list[bytes], stream: AsyncIterator[Any]) -> None:
    """Collect the messages that arrive before an error."""
    async for chunk in stream:
        into.append(chunk.data)  # noqa: PERF401


async def idle(served: Any) -> None:
    async with asyncio.timeout(60):
        await served.server.drain.idle()


async def test_stream_arrives_completely_under_one_span_on_each_side(
    serve: Any, peer_of: Any, keys: Any, spans: Any
) -> None:
    served = await serve()
    served.files.chunks = some(b"a", b"b", b"c")
    async with peer_of(served.target) as peer:
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with use_token(keys.minter("client").client_token("acme", "ann", 60)):
            got = [chunk.data async for chunk in peer.stream(method, REQUEST, timeout_seconds=60)]
    await idle(served)
    assert got == [b"a", b"b", b"c"]
    server, client = sorted(spans.get_finished_spans(), key=lambda span: span.kind is SpanKind.CLIENT)
    assert [link.context.span_id for link in server.links] == [client.context.span_id]
    assert [span.attributes["rpc.response.status_code"] for span in (server, client)] == ["OK", "OK"]
    assert current_trace_id() == ""


async def test_stream_that_breaks_ends_in_a_typed_error(
    serve: Any, peer_of: Any, keys: Any, events: Any
) -> None:
    served = await serve()
    served.files.chunks = some(
        b"a", then=MeshError(Reason.STORED_HASH_DIFFERS, "differs", facts={"sha256": "ab"})
    )
    got: list[bytes] = []
    async with peer_of(served.target) as peer:
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with (
            use_token(keys.minter("client").client_token("acme", "ann", 60)),
            pytest.raises(MeshError) as caught,
        ):
            await collect(got, peer.stream(method, REQUEST, timeout_seconds=60))
    await idle(served)
    assert got == [b"a"]
    assert (caught.value.reason, caught.value.facts) == (Reason.STORED_HASH_DIFFERS, {"sha256": "ab"})
    assert [event["code"] for event in events] == ["DATA_LOSS"]


async def test_closing_the_stream_cancels_the_call_and_closes_the_servicers_generator(
    serve: Any, peer_of: Any, keys: Any, spans: Any, events: Any
) -> None:
    served = await serve()
    served.files.chunks = endless()
    async with peer_of(served.target) as peer:
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with use_token(keys.minter("client").client_token("acme", "ann", 60)):
            async with aclosing(peer.stream(method, REQUEST, timeout_seconds=60)) as chunks:
                async for _ in chunks:
                    break
        async with asyncio.timeout(60):
            await served.files.closed.wait()
        await idle(served)
    assert [event["code"] for event in events] == ["CANCELLED"]
    assert [span.attributes["rpc.response.status_code"] for span in spans.get_finished_spans()] == [
        "CANCELLED"
    ] * 2


async def test_refused_stream_reaches_no_servicer(serve: Any, peer_of: Any) -> None:
    served = await serve()
    async with peer_of(served.target) as peer:
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with impersonate("acme"), pytest.raises(MeshError) as caught:
            async for _ in peer.stream(method, REQUEST, timeout_seconds=60):
                pass
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED


async def test_stream_is_held_to_its_deadline(serve: Any, peer_of: Any, keys: Any) -> None:
    served = await serve()
    served.files.chunks = endless()
    async with peer_of(served.target) as peer:
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with (
            use_token(keys.minter("client").client_token("acme", "ann", 60)),
            pytest.raises(MeshError) as caught,
        ):
            async for _ in peer.stream(method, REQUEST, timeout_seconds=0.2):
                pass
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    await idle(served)
    assert served.files.closed.is_set()
