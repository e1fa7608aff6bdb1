"""Wait until a service hears of queued runs."""

from typing import Any

from spawnmesh_postgres.listener import Listener
from spawnmesh_session.store import run_queue

from tests.support.session.tables import superuser

_NOTIFY = "select pg_notify(%s || (select suffix from session._spawnmesh_channels), 'nobody')"


async def until_listening(listener: Listener, postgres: Any) -> None:
    """Wait until the listener hears the database. It wakes all subscribers when it begins to."""
    async with superuser(postgres) as link:
        with listener.subscription(run_queue.CHANNEL) as heard:
            while not await heard.wait(1.0):
                await link.execute(_NOTIFY, (run_queue.CHANNEL,))
            await link.execute(_NOTIFY, (run_queue.CHANNEL,))
            assert await heard.wait(60.0)
