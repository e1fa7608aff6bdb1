"""Every refusal has a reason, and a refused call creates nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.spans import Span
from spawnmesh_core.status import Status
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.security.raw_calls import METHODS, allowed_token, bearer, path_of, refused
from tests.support.waiting import eventually


async def a_tenant(stack: Stack) -> str:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    return tenant


def client_of(stack: Stack, tenant: str, token: str = "") -> Any:
    return connect_wire(
        session=stack.targets["session"],
        transcript=stack.targets["transcript"],
        attachment_blob=stack.targets["attachment-blob"],
        hook=stack.targets["hook"],
        token=token or stack.client_token(tenant),
    )


@pytest.fixture
async def tenant(stack: Stack) -> str:
    return await a_tenant(stack)


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    async with client_of(stack, tenant) as client:
        yield client


async def sessions_of(mesh: WireMesh) -> list[session_pb2.Session]:
    return [session async for session in mesh.sessions()]


async def test_token_that_is_missing_expired_foreign_or_for_another_audience(
    stack: Stack, mesh: WireMesh, tenant: str
) -> None:
    key = stack.keys / "client.pem"
    old = TokenMinter("client", key, clock=lambda: utc_now() - timedelta(hours=2)).client_token(
        tenant, "test", 60
    )
    elsewhere = TokenMinter("client", key, audience="another-mesh").client_token(tenant, "test", 60)
    forged = TokenMinter("client", stack.keys / "hook.pem").client_token(tenant, "test", 60)
    impostor = TokenMinter("hook", stack.keys / "hook.pem").client_token(tenant, "test", 60)
    for token, reason in (
        ("nonsense", Reason.TOKEN_INVALID),
        (old, Reason.TOKEN_EXPIRED),
        (elsewhere, Reason.TOKEN_INVALID),
        (forged, Reason.TOKEN_INVALID),
        (impostor, Reason.TOKEN_INVALID),
    ):
        async with client_of(stack, tenant, token) as client:
            with pytest.raises(MeshError) as caught:
                await client.spawn("count")
        assert (caught.value.reason, caught.value.status) == (reason, Status.UNAUTHENTICATED)
        assert token not in str(caught.value)
    assert await sessions_of(mesh) == []


async def test_call_without_a_token(stack: Stack) -> None:

    async with grpc.aio.insecure_channel(stack.targets["session"]) as channel:
        stub: Any = SessionServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListSessions(pb.ListSessionsRequest(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "TOKEN_MISSING" in str(caught.value.trailing_metadata())


async def test_every_process_checks_the_caller_first_and_refuses_garbage(stack: Stack) -> None:
    """The RPCs are those that the processes themselves list."""
    for service, target in stack.targets.items():
        async with grpc.aio.insecure_channel(target) as channel:
            served = [METHODS[name] for name in METHODS if name.rpartition(".")[0] in await names(channel)]
            assert len(served) > 3, service
            for method in served:
                path = path_of(method)
                call = channel.stream_stream(path)(never(), timeout=60)
                with pytest.raises(grpc.aio.AioRpcError) as unread:
                    await call.read()
                assert unread.value.code() is grpc.StatusCode.UNAUTHENTICATED, path
                token = allowed_token(stack.keys, method)
                got = await refused(channel, method, b"\xff" * 16, headers=(bearer(token),))
                assert (got.code, got.reason) == ("INVALID_ARGUMENT", Reason.INVALID_REQUEST), path
                got = await refused(channel, method, bytes(1024), compression=grpc.Compression.Gzip)
                assert got.code == "UNIMPLEMENTED", path


async def never() -> AsyncIterator[bytes]:
    """Send no message and do not end."""
    await asyncio.Event().wait()
    yield b""


async def names(channel: grpc.aio.Channel) -> set[str]:
    """Return the names of the services behind the channel."""
    listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    return {one.name async for answer in listed for one in answer.list_services_response.service}


async def test_trace_of_a_client_is_a_link_of_the_trace_of_its_spawn(stack: Stack, tenant: str) -> None:
    sent = f"00-{uuid4().hex}-{uuid4().hex[:16]}-00"
    async with grpc.aio.insecure_channel(stack.targets["session"]) as channel:
        answer = await SessionServiceStub(channel).SpawnSession(
            pb.SpawnSessionRequest(request_id="traced", task="count"),
            metadata=(bearer(stack.client_token(tenant)), ("traceparent", sent)),
            timeout=60,
        )
    trace_id = answer.session.trace_id
    assert trace_id not in ("", sent.split("-")[1])

    def roots() -> list[Span]:
        """Return the spans without a parent, once there is one and the runner has sent spans."""
        spans = load_spans(stack.traces_file, trace_id)
        is_there = {"session", "runner"} <= {span.service for span in spans}
        return [span for span in spans if not span.parent_span_id] if is_there else []

    [root] = await eventually(roots)
    assert root.name.endswith("/SpawnSession")
    assert [link["trace_id"] for link in root.links] == [sent.split("-")[1]]


async def test_deadline_that_is_past_already(mesh: WireMesh) -> None:
    peer = mesh.service("session")
    stub: Any = SessionServiceStub(peer.channel)
    with pytest.raises(MeshError) as caught:
        await peer.unary(
            stub.SpawnSession, pb.SpawnSessionRequest(request_id="r", task="t"), timeout_seconds=-1.0
        )
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert await sessions_of(mesh) == []


async def test_body_that_is_too_large(mesh: WireMesh) -> None:
    peer = mesh.service("session")
    stub: Any = SessionServiceStub(peer.channel)
    request = pb.SpawnSessionRequest(request_id="r", task="t")
    request.attachments.add(name="a.txt", content="x" * (17 * 1024 * 1024), encoding=1)
    with pytest.raises(MeshError) as caught:
        await peer.unary(stub.SpawnSession, request, timeout_seconds=60)
    assert (caught.value.reason, caught.value.status) == (Reason.MESSAGE_TOO_LARGE, Status.RESOURCE_EXHAUSTED)
    assert await sessions_of(mesh) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task": ""}, Reason.INVALID_REQUEST),
        ({"task": "t", "agent_id": "unknown"}, Reason.UNKNOWN_AGENT),
        ({"task": "t", "parent_session_id": "ses_01m7y2n4wsqhp7t4ptyq957v0b"}, Reason.NOT_FOUND),
    ],
)
async def test_spawn_that_is_malformed_creates_nothing(
    mesh: WireMesh, fields: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(**fields)
    assert caught.value.reason is reason
    assert await sessions_of(mesh) == []


async def test_bad_attachment_is_refused_with_its_reason_and_without_its_name(mesh: WireMesh) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn("count", attachments=[Attachment("../../etc/passwd", b"x")])
    assert caught.value.reason is Reason.ATTACHMENTS_INVALID_NAME
    assert "passwd" not in str(caught.value)


async def test_unknown_model_fails_the_run_with_its_reason(mesh: WireMesh) -> None:
    session = await mesh.spawn("count", model="unknown/model", wait_seconds=30)
    assert session.latest_run.state == session_pb2.RUN_STATE_FAILED
    assert session.latest_run.error_reason == reason_number(Reason.UNKNOWN_MODEL)


async def test_ids_of_another_tenant_are_not_found_in_any_service(stack: Stack, mesh: WireMesh) -> None:
    session = await mesh.spawn("read it", attachments=[Attachment("a.txt", b"alpha")])
    async with client_of(stack, await a_tenant(stack)) as other:
        transcript, blob, hook = (
            other.service("transcript"),
            other.service("attachment-blob"),
            other.service("hook"),
        )
        entries: Any = TranscriptServiceStub(transcript.channel)
        files: Any = AttachmentBlobServiceStub(blob.channel)
        plugins: Any = HookServiceStub(hook.channel)
        session_id, set_id = session.session_id, session.receipt.set_id
        for call in (
            other.session(session_id),
            other.kill(session_id),
            other.send(session_id, "hello"),
            transcript.unary(
                entries.ListEntries,
                transcript_pb.ListEntriesRequest(session_id=session_id),
                timeout_seconds=60,
            ),
            transcript.unary(
                entries.AssembleContext,
                transcript_pb.AssembleContextRequest(session_id=session_id, token_budget=1000),
                timeout_seconds=60,
            ),
            blob.unary(files.GetSet, blob_pb.GetSetRequest(set_id=set_id), timeout_seconds=60),
            anext(
                blob.stream(
                    files.ReadFile, blob_pb.ReadFileRequest(set_id=set_id, name="a.txt"), timeout_seconds=5
                )
            ),
        ):
            with pytest.raises(MeshError) as caught:
                await call
            assert (caught.value.reason, caught.value.status) == (Reason.NOT_FOUND, Status.NOT_FOUND)
        deliveries = await hook.unary(
            plugins.ListDeliveries, hook_pb.ListDeliveriesRequest(session_id=session_id), timeout_seconds=60
        )
        assert list(deliveries.deliveries) == []
        assert await sessions_of(other) == []
    assert (
        await mesh.wait(session.session_id, 60)
    ).session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED
