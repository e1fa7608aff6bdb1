"""The call limits of tenants that this replica knows, for itself and for the other services."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import structlog
from google.protobuf.json_format import ParseDict
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits as Limits
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import error_label
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_postgres.listener import Listener, Subscription
from spawnmesh_runtime.call_limits import CallLimits
from spawnmesh_runtime.call_limits_follower import own_limits

from spawnmesh_session.domain.call_limits_ceiling import CallLimitsCeiling
from spawnmesh_session.store import tenants

# A lost connection of the listener wakes every reader; this is for a loss without a sign, and for
# the tenants that were deleted.
_POLL_SECONDS = 5.0
# Changes of this time are read together.
_GATHER_SECONDS = 0.02
_RETRY_SECONDS = 0.5
_ALIVE_SECONDS = 3.0
# Before the token of the reader expires.
_STREAM_SECONDS = 240.0
_PAGE = 1000

log = structlog.get_logger()

Change = tuple[str, Limits]


class CallLimitsFeed:
    """Keeps the limits of the database in memory, and passes them on.

    Each replica reads the database once for all of its streams. No limit is above the ceiling.
    """

    def __init__(self, database: Database, limits: CallLimits, ceiling: CallLimitsCeiling) -> None:
        self.ceiling = ceiling
        self._database = database
        self._limits = limits
        self._known: Mapping[str, Limits] | None = None
        self._news = asyncio.Event()
        self._is_closed = False

    async def read(self) -> None:
        """Read the limits of all tenants. If they changed, act on them and wake the streams."""
        async with self._database.transaction(ALL_TENANTS) as connection:
            stored = await tenants.read_call_limits(connection)
        known = {
            tenant_id: ParseDict(dict(self.ceiling.bound(settings)), Limits())
            for tenant_id, settings in stored.items()
        }
        if known == self._known:
            return
        self._known = known
        self._limits.replace_all({tenant_id: own_limits(limits) for tenant_id, limits in known.items()})
        self._wake()

    def close(self) -> None:
        """End the streams, as this replica shuts down."""
        self._is_closed = True
        self._wake()

    async def changes(self) -> AsyncGenerator[tuple[list[Change], bool], None]:
        """Yield pages of changes, first all limits, and whether a page is the last of its changes.

        A page without changes comes every few seconds. Nothing comes before the first read.
        """
        end = monotonic_seconds() + _STREAM_SECONDS
        sent: Mapping[str, Limits] = {}
        while not self._is_closed and monotonic_seconds() < end:
            known, news = self._known, self._news
            if known is not None:
                due = [] if known is sent else _changes(sent, known)
                sent = known
                for start in range(0, max(len(due), 1), _PAGE):
                    yield due[start : start + _PAGE], start + _PAGE >= len(due)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _changes(before: Mapping[str, Limits], after: Mapping[str, Limits]) -> list[Change]:
    changed = [(tenant_id, limits) for tenant_id, limits in after.items() if before.get(tenant_id) != limits]
    return changed + [(tenant_id, Limits()) for tenant_id in before.keys() - after.keys()]


@asynccontextmanager
async def open_call_limits_feed(
    database: Database, listener: Listener, limits: CallLimits, ceiling: CallLimitsCeiling
) -> AsyncIterator[CallLimitsFeed]:
    """Read the limits during the block, and let this process act on them.

    Tenants have the default limits until the first read.
    """
    feed = CallLimitsFeed(database, limits, ceiling)
    with listener.subscription(tenants.CALL_LIMITS_CHANNEL) as changed:
        task = asyncio.create_task(_read_forever(feed, changed), name="read call limits")
        try:
            yield feed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _read_forever(feed: CallLimitsFeed, changed: Subscription) -> None:
    while True:
        try:
            await feed.read()
        except Exception as error:  # noqa: BLE001 - the next read tries again, whatever the error
            raise_if_cancelled()
            log.warning("call_limits_not_read", error=error_label(error))
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        await changed.wait(_POLL_SECONDS)
        await asyncio.sleep(_GATHER_SECONDS)
