"""The matrix in docs/architecture/security.md is what running interceptors do, for every RPC and
identity.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from opentelemetry.trace import NoOpTracer
from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import ROLES, CallerKind
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import SERVICES, TokenMinter, TokenVerifier

from tests.support.security.call_matrix import DENIALS, PLUGIN, PLUGIN_SERVICE, identity_token, read_matrix
from tests.support.security.raw_calls import METHODS

CELLS = {
    **DENIALS,
    ("NOT_FOUND", Reason.NOT_FOUND): "yes",  # The servicers of this file raise it.
    ("INVALID_ARGUMENT", Reason.INVALID_REQUEST): "yes",  # Requests are validated for allowed callers only.
}


def handler_of(method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return a handler as generated code makes it. Its servicer raises NOT_FOUND."""

    async def unary(request: Any, context: Any) -> Any:
        raise MeshError(Reason.NOT_FOUND, "the call reached its servicer")

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await unary(request, context)
        yield

    make: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        stream if method.server_streaming else unary,
        request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )
    return handler


@asynccontextmanager
async def serving(keys: Path, plugin: str | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """Serve every RPC as a service of the mesh, or as the plugin at an endpoint."""
    verifier = TokenVerifier(JwksFile(keys / "jwks.json"))
    minter = TokenMinter("session", keys / "session.pem")
    server = build_server(
        Process("session", ProcessSettings(), minter, verifier, NoOpTracer()), plugin=plugin
    )
    for service in mesh_services():
        handlers = {method.name: handler_of(method) for method in service.methods}
        server.add_registered_method_handlers(service.full_name, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.enable_http_proxy", 0)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield channel
    finally:
        await server.stop(None)


async def nothing() -> AsyncIterator[bytes]:
    messages: tuple[bytes, ...] = ()
    for message in messages:
        yield message


async def cell_of(channel: grpc.aio.Channel, method: MethodDescriptor, token: str) -> str:
    """Call the RPC with the token and an empty request, and return the cell that says the outcome."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    options: dict[str, Any] = {"metadata": headers, "timeout": 30}
    try:
        if method.client_streaming:
            await call_client_stream(channel.stream_unary(path), nothing(), **options)
        elif method.server_streaming:
            await anext(aiter(channel.unary_stream(path)(b"", **options)))
        else:
            await channel.unary_unary(path)(b"", **options)
    except grpc.aio.AioRpcError as error:
        refused = error.code().name, error_from("session", error).reason
        return CELLS.get(refused, " ".join(refused))
    return "answered"


async def test_every_rpc_answers_each_identity_as_the_matrix_says(keys: Path) -> None:
    matrix = read_matrix()
    assert matrix.keys() == METHODS.keys()
    tokens = {identity: identity_token(keys, identity) for identity in next(iter(matrix.values()))}
    found: dict[str, dict[str, str]] = {}
    async with serving(keys) as mesh, serving(keys, PLUGIN) as plugin:
        for name, method in METHODS.items():
            channel = plugin if method.containing_service.full_name == PLUGIN_SERVICE else mesh
            cells = await asyncio.gather(*(cell_of(channel, method, token) for token in tokens.values()))
            found[name] = dict(zip(tokens, cells, strict=True))
            for service in SERVICES:
                token = TokenMinter(service, keys / f"{service}.pem").mesh_token()
                if await cell_of(channel, method, token) not in ("-", "invalid"):
                    found[name][service] += " and no tenant"
    assert found == {name: _in_full(cells) for name, cells in matrix.items()}


def _in_full(cells: dict[str, str]) -> dict[str, str]:
    """Return the cells as they are found: a call with a tenant, and one without."""
    return {name: "- and no tenant" if cell == "no tenant" else cell for name, cell in cells.items()}


def test_every_kind_of_token_is_in_the_matrix() -> None:
    kinds = {kind.value for kind in CallerKind if kind not in (CallerKind.CLIENT, CallerKind.SERVICE)}
    roles = {f"client: {role}" for role in ROLES}
    for cells in read_matrix().values():
        assert cells.keys() == {"no token", *roles, *kinds, *SERVICES, "hook, for a plugin"}
