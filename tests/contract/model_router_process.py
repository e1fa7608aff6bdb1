"""The router as a process of its own, that can be killed at any moment, and a line to PostgreSQL that can go dead."""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_devstack.health import until_serving
from spawnmesh_devstack.members import base_environment
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.processes import Command, Process, start_process
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter

from tests.contract.model_router_fixtures import Router, World
from tests.contract.serving import caller_at


@dataclass
class RouterProcess:
    """A router that was started with `world`'s configuration, and how to call it."""

    world: World
    watchdog: Watchdog
    peer: Peer
    port: int
    config: Path
    dsn: str
    tenant: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")
    process: Process | None = None

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def caller(self) -> Router:
        """Its callers' side."""
        keys = self.world.keys
        token = TokenMinter("client", keys / "client.pem").client_token(self.tenant, "tester", 600)
        stub = ModelRouterServiceStub(self.peer.channel)
        return Router(self.peer, stub, token, InMemorySpanExporter(), self.target, keys, self.tenant)

    async def start(self) -> None:
        """Returns when it serves and the callers are connected to it."""
        env = {
            **base_environment(),
            **self.world.environ,
            "MODEL_ROUTER_LISTEN": self.target,
            "MODEL_ROUTER_JWKS_FILE": str(self.world.keys / "jwks.json"),
            "MODEL_ROUTER_DATABASE_URL": self.dsn,
            "MODEL_ROUTER_CONFIG_FILE": str(self.config),
            "MODEL_ROUTER_TRIES_BEFORE_FAILOVER": "1",
            "MODEL_ROUTER_TRIES_AT_LAST_CANDIDATE": "1",
        }
        argv = (sys.executable, "-m", "spawnmesh_model_router", "serve")
        log = self.config.with_suffix(".log")
        self.process = start_process(Command("model-router", argv, log, env), self.watchdog)
        await until_serving(self.process, self.port)
        await self.peer.channel.channel_ready()

    async def kill(self) -> None:
        """SIGKILL: nothing is said to anybody."""
        assert self.process is not None
        await self.process.kill()


@asynccontextmanager
async def open_router_process(world: World, watchdog: Watchdog, dsn: str = "") -> AsyncIterator[RouterProcess]:
    """One that serves, by default with the world's database; killed with the block."""
    (port,) = free_ports(1)
    config = world.folder / f"{secrets.token_hex(4)}.json"
    config.write_text(json.dumps(world.config()))
    async with caller_at(f"{LOOPBACK}:{port}", "model-router") as peer:
        router = RouterProcess(world, watchdog, peer, port, config, dsn or world.dsn.app)
        await router.start()
        try:
            yield router
        finally:
            await router.kill()


class Line:
    """A line to a socket that carries bytes both ways while it is whole. While it is cut, connections stay and nothing comes through."""

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
        """What is on the line never arrives."""
        self._lost = True
        self._open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
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
    """A line to the database of `dsn`, and the DSN that leads through it."""
    line = Line(Path(str(conninfo_to_dict(dsn)["host"])) / ".s.PGSQL.5432")
    server = await asyncio.start_server(line.carry, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield line, make_conninfo(dsn, host=LOOPBACK, port=port)
    finally:
        line.lose()
        server.close()
