"""The receiver of the tenants' webhooks, in the process of the trial: it refuses some messages at first."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from spawnmesh_devstack.ports import LOOPBACK

from tests.chaos.random_faults.facts import Row

_REFUSED = 41
"""Each such message is refused when it comes for the first time. It may hold its webhook back for five
seconds, so with many of them the mesh would not come to rest in time.
"""


@asynccontextmanager
async def open_receiver(received: list[Row]) -> AsyncIterator[str]:
    """Add what is received to the list. Give the URL, without the tenant at its end."""
    seen: set[str] = set()

    async def receive(request: web.Request) -> web.Response:
        message_id, message = request.headers["webhook-id"], json.loads(await request.read())
        if message_id not in seen:
            seen.add(message_id)
            if len(seen) % _REFUSED == 0:
                return web.Response(status=503)
        received.append({"tenant_id": request.path.strip("/"), "message_id": message_id, **message})
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/{tenant}", receive)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
