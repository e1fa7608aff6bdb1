"""Building a server, binding its port, and reflection."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.session.v1.approval_service_pb2_grpc import (
    ApprovalServiceServicer,
    add_ApprovalServiceServicer_to_server,
)
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.methods import PolicyMissing
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server

from tests.support.waiting import eventually

BIND = """
import sys
from spawnmesh_runtime.process import run_process, start_process
from spawnmesh_runtime.server import build_server, run_until_stopped
from spawnmesh_runtime.settings import ProcessSettings, load_settings

async def main():
    settings = load_settings(ProcessSettings)
    async with start_process("hook", settings) as process:
        await run_until_stopped(process, build_server(process))

run_process(main())
"""


def declare(service: str, policy: policy_pb2.CallPolicy | None, **method: Any) -> None:
    """Add a service with the RPC `Count`, over messages of the plugin contract, to the
    descriptor pool.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{service}.proto", package="test.runtime", syntax="proto3", dependency=[pb.DESCRIPTOR.name]
    )
    rpc = file.service.add(name=service).method.add(
        name="Count",
        input_type=f".{pb.HandleBeforeSpawnRequest.DESCRIPTOR.full_name}",
        output_type=f".{pb.HandleObservedEventResponse.DESCRIPTOR.full_name}",
        **method,
    )
    if policy is not None:
        rpc.options.Extensions[policy_pb2.call_policy].CopyFrom(policy)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def add(server: grpc.aio.Server, service: str, handler: Any) -> None:
    """Add the handlers as generated code does."""
    handlers = {"Count": handler}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"test.runtime.{service}", handlers),)
    )
    # not in the stubs
    server.add_registered_method_handlers(f"test.runtime.{service}", handlers)  # type: ignore[attr-defined]


CLIENT, READER = policy_pb2.CALLER_CLIENT, policy_pb2.ROLE_READER
READ, RUN = policy_pb2.RPC_CLASS_READ, policy_pb2.RPC_CLASS_RUN
BAD_POLICIES = {
    "NoPolicy": None,
    "NoCallers": policy_pb2.CallPolicy(),
    "Unspecified": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_UNSPECIFIED]),
    "ServiceUnnamed": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_SERVICE]),
    "ServicesUnused": policy_pb2.CallPolicy(callers=[CLIENT], services=["hook"], role=READER, rpc_class=READ),
    "ClientsWithoutRole": policy_pb2.CallPolicy(callers=[CLIENT], rpc_class=READ),
    "AdminsWithoutRole": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_ADMIN]),
    "RoleWithoutClients": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_RUN], role=READER, rpc_class=READ),
    "ClientsWithRoleOfAdmins": policy_pb2.CallPolicy(
        callers=[CLIENT], role=policy_pb2.ROLE_ADMIN, rpc_class=READ
    ),
    "ChecksRunWithoutRuns": policy_pb2.CallPolicy(
        callers=[CLIENT], role=READER, checks_run=True, rpc_class=READ
    ),
    "NoTenantWithoutServices": policy_pb2.CallPolicy(
        callers=[CLIENT], role=READER, without_tenant=True, rpc_class=READ
    ),
    "AdminsWithRoleOfClients": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_ADMIN], role=READER),
    "ClientsWithoutClass": policy_pb2.CallPolicy(callers=[CLIENT], role=READER),
    "RunsWithoutClass": policy_pb2.CallPolicy(callers=[policy_pb2.CALLER_RUN]),
    "ClassWithoutClients": policy_pb2.CallPolicy(
        callers=[policy_pb2.CALLER_SERVICE], services=["hook"], rpc_class=READ
    ),
    "NoPlaceBesidesSteps": policy_pb2.CallPolicy(
        callers=[policy_pb2.CALLER_RUN], rpc_class=READ, without_place=True
    ),
    "FrequentAndRecorded": policy_pb2.CallPolicy(
        callers=[policy_pb2.CALLER_RUN], rpc_class=RUN, is_frequent=True
    ),
    "ClientsInTheClassOfRuns": policy_pb2.CallPolicy(callers=[CLIENT], role=READER, rpc_class=RUN),
}


@pytest.mark.parametrize("service", BAD_POLICIES)
async def test_service_without_a_sound_policy_cannot_be_added(process_named: Any, service: str) -> None:
    declare(service, BAD_POLICIES[service])
    server = build_server(process_named("hook"))
    with pytest.raises(PolicyMissing, match=f"{service}.Count"):
        add(server, service, grpc.unary_unary_rpc_method_handler(lambda request, context: None))


async def test_client_stream_is_validated_message_by_message(
    process_named: Any, keys: Any, request_with: Any
) -> None:
    policy = policy_pb2.CallPolicy(callers=[CLIENT], role=READER, rpc_class=READ)
    declare("Streamed", policy, client_streaming=True)
    seen: list[Any] = []

    async def count(requests: AsyncIterator[Any], context: Any) -> Any:
        async for request in requests:
            seen.append(request)  # noqa: PERF401 - what came before the error counts
        return pb.HandleObservedEventResponse()

    server = build_server(process_named("hook"))
    handler = grpc.stream_unary_rpc_method_handler(
        count,
        request_deserializer=pb.HandleBeforeSpawnRequest.FromString,
        response_serializer=pb.HandleObservedEventResponse.SerializeToString,
    )
    add(server, "Streamed", handler)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = (("authorization", f"Bearer {keys.minter('client').client_token('acme', 'ann', 60)}"),)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(
                "/test.runtime.Streamed/Count",
                request_serializer=pb.HandleBeforeSpawnRequest.SerializeToString,
                response_deserializer=pb.HandleObservedEventResponse.FromString,
            )
            await call(iter([request_with(depth=1), request_with(depth=2)]), metadata=metadata)
            assert [request.event.depth for request in seen] == [1, 2]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(iter([request_with(depth=3), pb.HandleBeforeSpawnRequest()]), metadata=metadata)
    finally:
        await server.stop(None)
    assert error_from("hook", caught.value).reason is Reason.INVALID_REQUEST
    assert [request.event.depth for request in seen] == [1, 2, 3]


async def test_of_an_rpc_with_frequent_calls_the_log_has_the_refused_ones(
    process_named: Any, keys: Any, request_with: Any, events: Any
) -> None:
    policy = policy_pb2.CallPolicy(callers=[CLIENT], role=READER, rpc_class=READ, is_frequent=True)
    no_effects = descriptor_pb2.MethodOptions(idempotency_level=descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS)
    declare("Frequent", policy, options=no_effects)

    async def count(request: Any, context: Any) -> Any:
        return pb.HandleObservedEventResponse()

    server = build_server(process_named("hook"))
    handler = grpc.unary_unary_rpc_method_handler(
        count,
        request_deserializer=pb.HandleBeforeSpawnRequest.FromString,
        response_serializer=pb.HandleObservedEventResponse.SerializeToString,
    )
    add(server, "Frequent", handler)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    metadata = (("authorization", f"Bearer {keys.minter('client').client_token('acme', 'ann', 60)}"),)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                "/test.runtime.Frequent/Count",
                request_serializer=pb.HandleBeforeSpawnRequest.SerializeToString,
                response_deserializer=pb.HandleObservedEventResponse.FromString,
            )
            for _ in range(3):
                await call(request_with(depth=1), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError):
                await call(pb.HandleBeforeSpawnRequest(), metadata=metadata)
    finally:
        await server.stop(None)

    def logged() -> list[str]:
        return [event["code"] for event in events if event["event"] == "rpc"]

    await eventually(logged)
    assert logged() == ["INVALID_ARGUMENT"]


async def test_server_without_keys_to_verify_with_is_not_built(process_named: Any) -> None:
    whole = process_named("hook")
    with pytest.raises(ValueError, match="jwks"):
        build_server(Process("hook", whole.settings, whole.minter, None, whole.tracer))


async def test_service_that_lists_is_not_added_without_a_key_for_page_tokens(process_named: Any) -> None:
    whole = process_named("session")
    server = build_server(Process("session", whole.settings, None, whole.verifier, whole.tracer))
    with pytest.raises(SystemExit, match="session: signing_key_file is needed to sign page tokens"):
        add_ApprovalServiceServicer_to_server(ApprovalServiceServicer(), server)


async def test_reflection_lists_the_services_without_a_token(serve: Any) -> None:
    served = await serve()
    async with grpc.aio.insecure_channel(served.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = [
            service.name async for answer in answers for service in answer.list_services_response.service
        ]
    assert "spawnmesh.hook.v1.HookHandlerService" in names
    assert "grpc.health.v1.Health" in names


async def test_unknown_method_is_unimplemented(serve: Any, keys: Any) -> None:
    served = await serve()
    async with grpc.aio.insecure_channel(served.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/spawnmesh.hook.v1.HookHandlerService/Nothing", None, None)(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_busy_port_ends_the_process_with_one_line(keys: Any, busy_port: int) -> None:
    environment = {
        "LISTEN": f"127.0.0.1:{busy_port}",
        "JWKS_FILE": str(keys.jwks_file),
        "PYTHONPATH": ":".join(sys.path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", BIND], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == f"hook: cannot listen on 127.0.0.1:{busy_port}: the port is in use\n"


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"LISTEN": "nowhere"}, "invalid settings: LISTEN: must be host:port\n"),
        ({"JWKS_FILE": "/nowhere"}, "hook: jwks_file cannot be read as a set of keys\n"),
        (
            {"SIGNING_KEY_FILE": "/dev/null"},
            "hook: signing_key_file cannot be read as an Ed25519 or RSA private key\n",
        ),
    ],
)
def test_process_that_cannot_start_ends_with_one_line(environment: dict[str, str], line: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BIND],
        env={**environment, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (1, line)
