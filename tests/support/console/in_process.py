"""A console in the process of the test, so that a test can stop it between two lines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from spawnmesh_console.app import open_app
from spawnmesh_console.settings import ConsoleSettings

from tests.support.console.visitors import ConsoleTenant, sign_in

_ADDRESS = "127.0.0.1:1"  # Nothing listens: requests are handed over.


@asynccontextmanager
async def open_in_process(
    tenant: ConsoleTenant, token: str = "", **settings: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """Return the browser of an operator of the tenant who has signed in, or of another person.

    `settings` are further settings of the console.
    """
    targets = tenant.console.stack.targets
    named = {f"{name.replace('-', '_')}_target": target for name, target in targets.items()}
    async with open_app(ConsoleSettings(listen=_ADDRESS, **named, **settings)) as app:  # type: ignore[arg-type]
        transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
        headers = {"sec-fetch-site": "same-origin", "accept": "text/html"}
        async with httpx2.AsyncClient(
            transport=transport, base_url=f"http://{_ADDRESS}", headers=headers
        ) as client:
            await sign_in(client, token or tenant.token())
            yield client
