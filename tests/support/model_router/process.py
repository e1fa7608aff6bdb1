"""The router as a separate process that can be killed, and a proxy to PostgreSQL that can
be cut.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.health import until_serving
from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.processes import ChildProcess, Command, start_process
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.fixtures import Router, World
from tests.support.serving import caller_at


@dataclass
class RouterProcess:
    """A router process with the configuration of `world`, and its callers."""

    world: World
    watchdog: Watchdog
    fork_server: ForkServer
    peer: Peer
    port: int
    config: Path
    dsn: str
    tenant: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")
    process: ChildProcess | None = None

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def caller(self) -> Router:
        """Return the client side of the process."""
        keys = self.world.keys
        token = TokenMinter("client", keys / "client.pem").client_token(self.tenant, "tester", 600)
        stub = ModelRouterServiceStub(self.peer.channel)
        return Router(self.peer, stub, token, InMemorySpanExporter(), self.target, keys, self.tenant)

    async def start(self) -> None:
        """Start the process, and wait until it serves and the callers are connected."""
        env = {
            **base_environment(),
            **self.world.environ,
            "MODEL_ROUTER_LISTEN": self.target,
            "MODEL_ROUTER_JWKS_FILE": str(self.world.keys / "jwks.json"),
            "MODEL_ROUTER_SIGNING_KEY_FILE": str(self.world.keys / "model-router.pem"),
            "MODEL_ROUTER_DATABASE_URL": self.dsn,
            "MODEL_ROUTER_CONFIG_FILE": str(self.config),
            "MODEL_ROUTER_TRIES_BEFORE_FAILOVER": "1",
            "MODEL_ROUTER_TRIES_AT_LAST_CANDIDATE": "1",
            "MODEL_ROUTER_DATABASE_TIMEOUT_SECONDS": str(self.world.database_timeout_seconds),
        }
        argv = (sys.executable, "-m", "spawnmesh_model_router", "serve")
        log = self.config.with_suffix(".log")
        command = Command("model-router", argv, log, env)
        self.process = start_process(command, self.watchdog, self.fork_server.execute)
        await until_serving(self.process, self.port)
        await self.peer.channel.channel_ready()
        await self.caller.send_policy(1)

    async def kill(self) -> None:
        """Send SIGKILL."""
        assert self.process is not None
        await self.process.kill()


@asynccontextmanager
async def open_router_process(
    world: World,
    watchdog: Watchdog,
    fork_server: ForkServer,
    dsn: str = "",
    tables: dict[str, Any] | None = None,
) -> AsyncIterator[RouterProcess]:
    """Yield a running router process, by default with the world's database and configuration.

    It is killed with the block. It knows the OpenAI-compatible provider alone: the SDK of Anthropic
    takes as long to import as the rest of the process.
    """
    (port,) = free_ports(1)
    config = world.folder / f"{secrets.token_hex(4)}.json"
    config.write_text(json.dumps(_without_anthropic(world, tables or world.config())))
    async with caller_at(f"{LOOPBACK}:{port}", "model-router") as peer:
        router = RouterProcess(world, watchdog, fork_server, peer, port, config, dsn or world.dsn.app)
        await router.start()
        try:
            yield router
        finally:
            await router.kill()


def _without_anthropic(world: World, config: dict[str, Any]) -> dict[str, Any]:
    for table in (config["providers"], config["models"]):
        for name in [name for name in table if name.startswith(world.anthropic)]:
            del table[name]
    return config


class Line:
    """A proxy to a socket. While it is cut, connections stay open and no bytes pass."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._open = asyncio.Event()
        self._open.set()
        self._lost = False

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def lose(self) -> None:
        """Drop the bytes that are in the proxy."""
        self._lost = True
        self._open.set()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        far_reader, far_writer = await asyncio.open_unix_connection(self._socket)
        with suppress(OSError):
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                if self._lost:
                    return
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def open_line(dsn: str) -> AsyncIterator[tuple[Line, str]]:
    """Yield a proxy to the database of `dsn`, and the DSN that leads through it."""
    line = Line(Path(str(conninfo_to_dict(dsn)["host"])) / ".s.PGSQL.5432")
    server = await asyncio.start_server(line.forward, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield line, make_conninfo(dsn, host=LOOPBACK, port=port)
    finally:
        line.lose()
        server.close()
