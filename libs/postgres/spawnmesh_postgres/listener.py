"""A connection that listens for NOTIFY and wakes its subscribers."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import structlog
from psycopg import sql
from spawnmesh_core.cancellation import raise_if_cancelled

from spawnmesh_postgres.channels import READ_SUFFIX
from spawnmesh_postgres.connection import BoundedCancelConnection
from spawnmesh_postgres.hosts import Hosts
from spawnmesh_postgres.server_probe import Server

Link = BoundedCancelConnection[tuple[Any, ...]]

_RECONNECT_SECONDS = 0.5
_CHECK_SECONDS = 10.0


class Subscription:
    """A subscription for these payloads, or for all without any. It remembers notifications between
    two waits, so that none is missed.
    """

    def __init__(self, payloads: Collection[str] = ()) -> None:
        self._payloads = frozenset(payloads)
        self._came = asyncio.Event()
        self._news: set[str] = set()

    def wake(self, payload: str | None = None) -> None:
        """Record a notification. Without a payload, any may have been missed."""
        self._news |= self._payloads if payload is None else self._payloads & {payload}
        self._came.set()

    def take_payloads(self) -> set[str]:
        """Return which of its payloads came since the last call."""
        news, self._news = self._news, set()
        return news

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for a notification, or return at once if one came since the last wait.

        Returns False after the timeout. A notification means "look again": several may be merged
        into one, and every reconnect sends one.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._came.wait()
        except TimeoutError:
            return False
        self._came.clear()
        return True


class Listener:
    """Listens on the channels it was opened with, to the notifications of its own service.

    It does not promise that every notification arrives: those sent while the connection is down are
    lost.
    """

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[str, str | None], set[Subscription]] = {}

    @contextmanager
    def subscription(self, channel: str, *payloads: str) -> Iterator[Subscription]:
        """Subscribe to a channel, for these payloads or, without any, for all payloads."""
        subscription = Subscription(payloads)
        keys = [(channel, payload) for payload in payloads or (None,)]
        for key in keys:
            self._subscriptions.setdefault(key, set()).add(subscription)
        try:
            yield subscription
        finally:
            for key in keys:
                self._remove(key, subscription)

    def _remove(self, key: tuple[str, str | None], subscription: Subscription) -> None:
        members = self._subscriptions.get(key, set())
        members.discard(subscription)
        if not members:
            self._subscriptions.pop(key, None)

    def notify(self, channel: str, payload: str) -> None:
        """Wake the subscribers of this channel and payload."""
        for key in ((channel, payload), (channel, None)):
            for subscription in self._subscriptions.get(key, ()):
                subscription.wake(payload)

    def wake_all(self) -> None:
        """Wake all subscribers: a notification may have been missed."""
        for members in self._subscriptions.values():
            for subscription in members:
                subscription.wake()


async def _listen_forever(listener: Listener, dsn: str, name: str, channels: tuple[str, ...]) -> None:
    log = structlog.get_logger()
    hosts = Hosts(dsn)
    while True:
        try:
            async with await BoundedCancelConnection.connect(
                hosts.dsn(), autocommit=True, application_name=name
            ) as link:
                hosts.prefer(link)
                link.server = server = Server(hosts.address_of(link), hosts.avoid)
                try:
                    await _listen(listener, link, channels)
                finally:
                    await server.close()
        except psycopg.Error as error:
            raise_if_cancelled()
            log.warning("listener_lost", sqlstate=error.sqlstate, retry_seconds=_RECONNECT_SECONDS)
        await asyncio.sleep(_RECONNECT_SECONDS)


async def _listen(listener: Listener, link: Link, channels: tuple[str, ...]) -> None:
    """Listen until the connection is lost, or its server is silent."""
    row = await (await link.execute(READ_SUFFIX.encode())).fetchone()
    suffix = "" if row is None else str(row[0])
    if not suffix:
        raise psycopg.OperationalError("the schema has no suffix of channels")
    for channel in channels:
        await link.execute(sql.SQL("listen {}").format(sql.Identifier(channel + suffix)))
    listener.wake_all()
    while True:
        link.listens = True
        async for notification in link.notifies(timeout=_CHECK_SECONDS):
            listener.notify(notification.channel.removesuffix(suffix), notification.payload)
        link.listens = False
        # A silent server sends no notifications, as one without news.
        await link.execute("select 1")


@asynccontextmanager
async def open_listener(dsn: str, *, name: str, channels: tuple[str, ...]) -> AsyncIterator[Listener]:
    """Listen during the block, and reconnect as often as necessary."""
    listener = Listener()
    task = asyncio.create_task(_listen_forever(listener, dsn, name, channels), name=f"listen {name}")
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
