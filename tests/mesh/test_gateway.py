"""One address for the whole mesh: a real Envoy before real services, called by gRPC."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc.aio
import pytest
import spawnmesh_client
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.deployment.v1 import deployment_service_pb2 as deployment_pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import DeploymentServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.spending import Spending
from spawnmesh_client.wire import WireMesh as Mesh
from spawnmesh_client.wire import connect_wire as connect
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.members import SERVICES
from spawnmesh_devstack.stack import Stack
from spawnmesh_gateway.rpcs import gateway_rpcs

from tests.support.mesh.new_tenant import new_tenant
from tests.support.security.raw_calls import METHODS, bearer, path_of
from tests.support.waiting import eventually

PLAIN = [("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0)]
INTERNAL = sorted(set(METHODS) - {rpc.method.full_name for rpc in gateway_rpcs()})


def through(gateway: str, token: str) -> Any:
    """Connect as a client that knows one address."""
    return connect(url=f"http://{gateway}", token=token)


@pytest.fixture
async def tenant(stack: Stack) -> str:
    return await new_tenant(stack)


@pytest.fixture
async def mesh(stack: Stack, gateway: str, tenant: str) -> AsyncIterator[Mesh]:
    async with through(gateway, stack.client_token(tenant)) as client:
        yield client


@pytest.fixture
async def channel(gateway: str) -> AsyncIterator[grpc.aio.Channel]:
    """Connect without the client of the mesh."""
    async with grpc.aio.insecure_channel(gateway, options=PLAIN) as opened:
        yield opened


async def refusal_of(call: Any) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_from("gateway", caught.value)


async def test_session_with_files_runs_and_is_read_through_one_address(mesh: Mesh) -> None:
    content = b"the code word is heron" * 10_000
    session = await mesh.spawn("Say hello.", attachments=[Attachment("a.txt", content)], wait_seconds=60)
    assert session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED
    entries = [entry async for entry in mesh.transcript(session.session_id)]
    assert len(entries) >= 2
    listed = await mesh.service("attachment-blob").unary(
        AttachmentBlobServiceStub(mesh.service("attachment-blob").channel).ListSets,
        blob_rpc.ListSetsRequest(session_id=session.session_id),
    )
    assert [one.set_id for one in listed.sets] == [session.receipt.set_id]


async def spending_of(mesh: spawnmesh_client.Mesh) -> Spending | None:
    """Return the spending of the tenant once there is some."""
    spent = await mesh.models.spend(group_by=["AGENT"])
    return spent if spent.rows else None


async def test_client_with_one_url_spawns_follows_and_reads(stack: Stack, gateway: str, tenant: str) -> None:
    files = [Attachment("large.bin", bytes(900_000)), Attachment("a.txt", b"hello")]
    async with spawnmesh_client.connect(f"http://{gateway}", token=stack.client_token(tenant)) as mesh:
        session = await mesh.spawn("Say hello.", attachments=files, metadata={"ticket": "17"})
        kinds = [event.kind async for event in session.events()]
        assert kinds[-1] is spawnmesh_client.EventKind.CLOSED
        assert "large.bin: 900000 bytes" in (await session.result(timeout=60)).text
        assert [one.role for one in [entry async for entry in session.transcript()] if one.role]
        found = [one.session_id async for one in mesh.sessions("metadata.ticket = 17")]
        assert found == [session.session_id]
        assert {one.agent_id for one in await mesh.agents.list()} == {"default"}
        assert await mesh.models.list()
        # The token of the run named its agent to the router.
        spent = await eventually(lambda: spending_of(mesh))
        assert {one.agent_id for one in spent.rows} == {"default"}
        with pytest.raises(spawnmesh_client.NotFound):
            await mesh.session(f"ses_{26 * '0'}")


async def test_each_service_is_reached_where_all_of_them_have_the_rpc(stack: Stack, gateway: str) -> None:
    async with through(gateway, stack.admin_token()) as operator:
        for service in SERVICES:
            peer = operator.service(service)
            described = await peer.unary(
                DeploymentServiceStub(peer.channel).DescribeReplica, deployment_pb.DescribeReplicaRequest()
            )
            assert described.replica.service == service


async def test_call_of_an_rpc_of_all_services_names_one(stack: Stack, channel: grpc.aio.Channel) -> None:
    error = await refusal_of(
        channel.unary_unary("/spawnmesh.deployment.v1.DeploymentService/DescribeReplica")(
            b"", metadata=(bearer(stack.admin_token()),)
        )
    )
    assert (error.reason, error.status) == (Reason.INVALID_REQUEST, Status.INVALID_ARGUMENT)
    assert "spawnmesh-service" in str(error)


@pytest.mark.parametrize("name", [*INTERNAL, "spawnmesh.session.v1.SessionService.Misspelled"])
async def test_rpc_between_services_is_refused(stack: Stack, channel: grpc.aio.Channel, name: str) -> None:
    path = path_of(METHODS[name]) if name in METHODS else "/spawnmesh.session.v1.SessionService/Misspelled"
    error = await refusal_of(channel.unary_unary(path)(b"", metadata=(bearer(stack.admin_token()),)))
    assert (error.reason, error.status, error.domain) == (
        Reason.UNKNOWN_RPC,
        Status.UNIMPLEMENTED,
        "gateway.spawnmesh",
    )


async def test_refusal_of_a_service_arrives_as_it_is(mesh: Mesh) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.session(f"ses_{26 * '0'}")
    assert (caught.value.reason, caught.value.domain) == (Reason.NOT_FOUND, "session.spawnmesh")


async def test_watch_lives_while_its_session_does(mesh: Mesh) -> None:
    session = await mesh.spawn("Say hello.")
    kinds: list[str] = []
    stub = SessionServiceStub(mesh.service("session").channel)
    request = session_rpc.WatchSessionRequest(session_id=session.session_id)
    async for answer in mesh.service("session").stream(stub.WatchSession, request, timeout_seconds=120):
        kinds.append(session_pb2.RunState.Name(answer.session_event.run_state))
        if kinds[-1] == "RUN_STATE_SUCCEEDED":
            break
    assert kinds[-1] == "RUN_STATE_SUCCEEDED"
    assert "RUN_STATE_RUNNING" in kinds


async def test_message_above_the_limit_is_refused_and_the_gateway_goes_on(
    stack: Stack, tenant: str, channel: grpc.aio.Channel
) -> None:
    request = session_rpc.SpawnSessionRequest(request_id="large", task="x" * (17 * 1024 * 1024))
    path = "/spawnmesh.session.v1.SessionService/SpawnSession"
    error = await refusal_of(
        channel.unary_unary(path)(request.SerializeToString(), metadata=(bearer(stack.client_token(tenant)),))
    )
    assert error.reason is Reason.MESSAGE_TOO_LARGE
    listed = await channel.unary_unary("/spawnmesh.session.v1.SessionService/ListSessions")(
        b"", metadata=(bearer(stack.client_token(tenant)),)
    )
    assert session_rpc.ListSessionsResponse.FromString(listed).sessions == []


FORGED = {
    "retries": ("x-envoy-retry-on", "5xx"),
    "time-out": ("x-envoy-upstream-rq-timeout-ms", "1"),
    "try": ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
    "headers": ("x-envoy-decorator-operation", "forged"),
    "path": ("x-envoy-original-path", "/spawnmesh.attachment_blob.v1.BlobService/PutBlob"),
    "address": ("x-forwarded-for", "127.0.0.1"),
    "host": ("x-forwarded-host", "hook"),
    "rewritten": ("x-original-url", "/spawnmesh.attachment_blob.v1.BlobService/PutBlob"),
    "service": ("spawnmesh-service", "hook"),
}


@pytest.mark.parametrize("name", FORGED)
async def test_header_of_an_attacker_has_no_effect(
    stack: Stack, tenant: str, channel: grpc.aio.Channel, name: str
) -> None:
    call = channel.unary_unary("/spawnmesh.session.v1.SessionService/ListSessions")
    headers = (bearer(stack.client_token(tenant)), FORGED[name])
    assert await call(b"", metadata=headers) == b""


async def test_log_names_the_peer_of_the_connection_and_not_the_one_of_a_header(
    stack: Stack, tenant: str, channel: grpc.aio.Channel
) -> None:
    mark = f"203.0.113.{uuid4().int % 200}"
    call = channel.unary_unary("/spawnmesh.session.v1.SessionService/ListSessions")
    await call(b"", metadata=(bearer(stack.client_token(tenant)), ("x-forwarded-for", mark)))
    log = stack.data_dir / "logs" / "gateway.log"
    await eventually(lambda: '"path":"/spawnmesh.session.v1.SessionService/ListSessions"' in log.read_text())
    assert mark not in log.read_text()
    assert '"peer":"127.0.0.1"' in log.read_text()


async def test_log_has_no_token(stack: Stack, tenant: str, channel: grpc.aio.Channel) -> None:
    token = stack.client_token(tenant)
    path = "/spawnmesh.session.v1.SessionService/GetSession"
    await refusal_of(channel.unary_unary(path)(b"", metadata=(bearer(token),)))
    log = stack.data_dir / "logs" / "gateway.log"
    await eventually(lambda: f'"path":"{path}"' in log.read_text())
    text = log.read_text()
    assert token not in text
    assert "Bearer" not in text


async def test_two_authorization_headers_open_nothing(
    stack: Stack, tenant: str, channel: grpc.aio.Channel
) -> None:
    call = channel.unary_unary("/spawnmesh.session.v1.SessionService/ListSessions")
    both = (bearer(stack.client_token(tenant)), bearer(stack.client_token(f"t-{uuid4().hex[:12]}")))
    for headers in (both, both[::-1]):
        error = await refusal_of(call(b"", metadata=headers))
        assert (error.reason, error.status) == (Reason.TOKEN_INVALID, Status.UNAUTHENTICATED)


async def test_service_that_is_away_is_refused_with_a_reason_until_it_is_back(
    stack: Stack, gateway: str, tenant: str, channel: grpc.aio.Channel
) -> None:
    call = channel.unary_unary("/spawnmesh.model_router.v1.ModelRouterService/ListModels")
    headers = (bearer(stack.client_token(tenant)),)
    await stack.processes["model-router"].kill()
    try:
        error = await refusal_of(call(b"", metadata=headers))
    finally:
        await stack.restart("model-router")
    assert (error.reason, error.status) == (Reason.DEPENDENCY_UNAVAILABLE, Status.UNAVAILABLE)

    async def answers() -> bool:
        try:
            return bool(await call(b"", metadata=headers))
        except grpc.aio.AioRpcError:
            return False

    await eventually(answers)


async def test_gateway_that_is_killed_is_back_on_its_address(stack: Stack, gateway: str, tenant: str) -> None:
    await stack.processes["gateway"].kill()
    await stack.restart("gateway")
    async with through(gateway, stack.client_token(tenant)) as client:
        assert [one async for one in client.sessions()] == []
