"""One connection that hears NOTIFY and wakes whoever waits for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import structlog
from psycopg import sql
from spawnmesh_core.cancellation import heed_cancellation

from spawnmesh_postgres.connection import ImpatientConnection

_RECONNECT_SECONDS = 0.5


class Subscription:
    """Remembers whether something came since the last wait, so that nothing is missed between looking and waiting."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def wake(self) -> None:
        self._came.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Waits until a notification comes, or has come since the last wait; False when the time is over first.

        A notification says "look again", not what happened: several may be one, and one comes after every reconnect.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._came.wait()
        except TimeoutError:
            return False
        self._came.clear()
        return True


class Listener:
    """Hears the channels it was opened with. Not promised: that every notification arrives; a broken connection loses what came meanwhile."""

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[str, str | None], set[Subscription]] = {}

    @contextmanager
    def subscription(self, channel: str, payload: str | None = None) -> Iterator[Subscription]:
        """Subscribes to a channel: to this payload only, or to all where it is None."""
        subscription = Subscription()
        members = self._subscriptions.setdefault((channel, payload), set())
        members.add(subscription)
        try:
            yield subscription
        finally:
            members.discard(subscription)
            if not members:
                self._subscriptions.pop((channel, payload), None)

    def notify(self, channel: str, payload: str) -> None:
        """Wakes those who wait for this channel and payload."""
        for key in ((channel, payload), (channel, None)):
            for subscription in self._subscriptions.get(key, ()):
                subscription.wake()

    def wake_all(self) -> None:
        """Wakes everyone: something may have been missed."""
        for members in self._subscriptions.values():
            for subscription in members:
                subscription.wake()


async def _listen_for_ever(listener: Listener, dsn: str, name: str, channels: tuple[str, ...]) -> None:
    log = structlog.get_logger()
    while True:
        try:
            async with await ImpatientConnection.connect(
                dsn, autocommit=True, application_name=name, connect_timeout=5
            ) as link:
                for channel in channels:
                    await link.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                listener.wake_all()
                async for notification in link.notifies():
                    listener.notify(notification.channel, notification.payload)
        except psycopg.Error as error:
            heed_cancellation()
            log.warning("listener_lost", sqlstate=error.sqlstate, retry_seconds=_RECONNECT_SECONDS)
        await asyncio.sleep(_RECONNECT_SECONDS)


@asynccontextmanager
async def open_listener(dsn: str, *, name: str, channels: tuple[str, ...]) -> AsyncIterator[Listener]:
    """Listens until the block ends, reconnecting for as long as it takes."""
    listener = Listener()
    task = asyncio.create_task(_listen_for_ever(listener, dsn, name, channels), name=f"listen {name}")
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
