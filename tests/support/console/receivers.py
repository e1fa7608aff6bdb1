"""A server outside of the mesh that receives messages of webhooks."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from aiohttp import web
from spawnmesh_devstack.ports import LOOPBACK, free_ports


@dataclass
class Receiver:
    """One address of the server. It answers each request with `status`."""

    url: str = ""
    status: int = 204
    requests: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    """The headers and the body of each request."""


@dataclass(frozen=True)
class Receivers:
    """The server, which has an address for each test."""

    base_url: str
    _by_path: dict[str, Receiver]

    def open(self) -> Receiver:
        """Return a new address."""
        path = f"/{uuid4().hex}"
        receiver = self._by_path[path]
        receiver.url = f"{self.base_url}{path}"
        return receiver


@asynccontextmanager
async def open_receivers() -> AsyncIterator[Receivers]:
    """Serve during the block."""
    by_path: dict[str, Receiver] = defaultdict(Receiver)

    async def receive(request: web.Request) -> web.Response:
        receiver = by_path[request.path]
        receiver.requests.append((dict(request.headers), await request.read()))
        return web.Response(status=receiver.status)

    app = web.Application()
    app.router.add_post("/{path}", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        (port,) = free_ports(1)
        await web.TCPSite(runner, LOOPBACK, port).start()
        yield Receivers(f"http://{LOOPBACK}:{port}", by_path)
    finally:
        await runner.cleanup()
