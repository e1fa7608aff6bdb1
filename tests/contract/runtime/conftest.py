"""A real grpc.aio server with the plugin contract, its own keys, and spans in memory."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

from tests.support.otlp import open_collector
from tests.support.runtime.plugin import Behavior, Plugin, allow, spawn_request

ISSUERS = ("session", "hook", "transcript", "runner", "client", "stranger")


@dataclass
class Keys:
    folder: Path

    @property
    def jwks_file(self) -> Path:
        return self.folder / "jwks.json"

    def minter(self, issuer: str, **options: Any) -> TokenMinter:
        return TokenMinter(issuer, self.folder / f"{issuer}.pem", **options)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    members = []
    for issuer in (*ISSUERS, "unknown"):
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{issuer}.pem").write_bytes(pem)
        member = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        members.append({**member, "kid": f"{issuer}-1", "iss": issuer})
    (folder / "jwks.json").write_text(json.dumps({"keys": members[:-1]}))
    return Keys(folder)


@pytest.fixture
async def collector() -> AsyncIterator[tuple[str, list[Any]]]:
    """Receive spans over OTLP; give the endpoint and the requests."""
    async with open_collector() as opened:
        yield opened


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def events() -> Any:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("info")
    )  # Whatever earlier tests left.
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.configure(wrapper_class=before)


@pytest.fixture
def process_named(keys: Keys, spans: InMemorySpanExporter) -> Callable[..., Process]:
    def make(service: str, **settings: Any) -> Process:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        return Process(
            service,
            ProcessSettings(**settings),
            keys.minter(service),
            TokenVerifier(JwksFile(keys.jwks_file)),
            provider.get_tracer(service),
        )

    return make


async def nothing() -> AsyncIterator[bytes]:
    parts: tuple[bytes, ...] = ()
    for part in parts:
        yield part


async def take_all(messages: AsyncIterator[Any], context: Any) -> blob_pb.UploadFileResponse:
    async for _ in messages:
        pass
    return blob_pb.UploadFileResponse()


@dataclass
class Files:
    """A service that streams chunks until the test stops it, and accepts uploads as the
    test decides.

    It does not implement the other methods.
    """

    chunks: AsyncIterator[bytes] = field(default_factory=nothing)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    uploading: Behavior = take_all

    def __getattr__(self, name: str) -> Any:
        if not hasattr(blob_grpc.AttachmentBlobServiceServicer, name):
            raise AttributeError(name)
        return None

    async def UploadFile(self, messages: AsyncIterator[Any], context: Any) -> Any:
        return await self.uploading(messages, context)

    async def ReadFile(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for chunk in self.chunks:
                yield blob_pb.ReadFileResponse(data=chunk)
        finally:
            self.closed.set()


@dataclass
class Served:
    process: Process
    server: MeshServer
    plugin: Plugin
    files: Files
    port: int

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
async def serve(process_named: Callable[..., Process]) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(behavior: Behavior = allow, *, service: str = "transcript", **options: Any) -> Served:
            translate = options.pop("translate_errors", ())
            process = process_named(service, **options)
            server = build_server(process, translate_errors=translate)
            plugin, files = Plugin(behavior), Files()
            pb_grpc.add_HookHandlerServiceServicer_to_server(plugin, server)
            # one method is all it has
            blob_grpc.add_AttachmentBlobServiceServicer_to_server(files, server)  # type: ignore[arg-type]
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, None)
            return Served(process, server, plugin, files, port)

        yield start


@pytest.fixture
def peer_of(process_named: Callable[..., Process]) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(
        target: str, *, caller: str = "hook", name: str = "plugin", **settings: Any
    ) -> AsyncIterator[Peer]:
        async with open_peer(process_named(caller, **settings), name, target) as peer:
            yield peer

    return opened


@pytest.fixture
def ask() -> Callable[..., Awaitable[Any]]:
    """Call HandleBeforeSpawn without the client of this library."""

    async def call(target: str, token: str | None, request: Any = None, **options: Any) -> Any:
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        async with grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = pb_grpc.HookHandlerServiceStub(channel)
            return await stub.HandleBeforeSpawn(
                request or spawn_request(),
                metadata=options.pop("metadata", metadata),
                timeout=options.pop("timeout", 60),
            )

    return call


@pytest.fixture
def request_with() -> Callable[..., pb.HandleBeforeSpawnRequest]:
    return spawn_request


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]
