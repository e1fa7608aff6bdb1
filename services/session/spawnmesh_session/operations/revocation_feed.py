"""The revoked tokens that this replica knows, for itself and for the other services."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from operator import itemgetter

import structlog
from spawnmesh_core.cancellation import raise_if_cancelled
from spawnmesh_core.clock import monotonic_seconds, utc_now
from spawnmesh_core.errors import error_label
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener, Subscription
from spawnmesh_runtime.revoked_tokens import RevokedTokens, revocation_key

from spawnmesh_session.store import revoked_tokens
from spawnmesh_session.store.revoked_tokens import NO_TENANT, RevokedToken

# A lost connection of the listener wakes every reader; this is for a loss without a sign.
_POLL_SECONDS = 5.0
# Revocations of this time are read together.
_GATHER_SECONDS = 0.02
_RETRY_SECONDS = 0.5
_FIRST_READ_SECONDS = 2.0
# Far below the shortest outage that a reader reports.
_ALIVE_SECONDS = 3.0
# Before the token of the reader expires.
_STREAM_SECONDS = 240.0
_PAGE = 1000
_FORGET_SECONDS = 60.0
# The share of the capacity at which entries are dropped sooner.
_SLACK = 1.1

log = structlog.get_logger()


class RevocationFeed:
    """Keeps the unexpired revocations of the database in memory, and passes them on in order.

    Each replica reads the database once for all of its streams.
    """

    def __init__(self, database: Database, refused: RevokedTokens) -> None:
        self._database = database
        self._refused = refused
        self._known: dict[tuple[str, str], tuple[datetime, bool]] = {}
        self._log: list[tuple[int, RevokedToken]] = []  # With ascending serial numbers.
        self._last_serial = 0
        self._position = 0
        self._news = asyncio.Event()
        self._is_closed = False
        self._forget_at = 0.0

    async def read(self) -> None:
        """Read what was revoked since the last read, and wake the streams."""
        before, next_position = self._last_serial, self._position
        try:
            async with aclosing(revoked_tokens.read_revoked_tokens(self._database, next_position)) as pages:
                async for tokens, position in pages:
                    for token in tokens:
                        self._keep(token)
                    self._forget()
                    next_position = position
            self._position = next_position
        finally:  # A read that fails has passed on what it found: the next one finds it known.
            if self._last_serial > before:
                self._wake()

    def close(self) -> None:
        """End the streams, as this replica shuts down."""
        self._is_closed = True
        self._wake()

    async def tokens_after(self, change: int) -> AsyncGenerator[tuple[list[RevokedToken], int], None]:
        """Yield pages of tokens with the position after them, 0 if more pages follow.

        The first comes at once. A page without tokens comes every few seconds.
        """
        end = monotonic_seconds() + _STREAM_SECONDS
        # A position that is not reached yet is one of another database.
        first_change = change if change <= self._position else 0
        serial = 0
        while not self._is_closed and monotonic_seconds() < end:
            position, news = self._position, self._news
            entries = self._log[bisect_right(self._log, serial, key=itemgetter(0)) :]
            serial = self._last_serial
            due = [token for _, token in entries if token.change >= first_change]
            for start in range(0, max(len(due), 1), _PAGE):
                is_last = start + _PAGE >= len(due)
                yield due[start : start + _PAGE], position if is_last else 0
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _keep(self, token: RevokedToken) -> None:
        tenant_id = "" if token.tenant_id == NO_TENANT else token.tenant_id
        key = tenant_id, token.token_id
        facts = token.expire_time, token.is_run
        if self._known.get(key) == facts:
            return
        self._known[key] = facts
        self._last_serial += 1
        self._log.append((self._last_serial, replace(token, tenant_id=tenant_id)))
        self._refused.add(revocation_key(*key), token.expire_time.timestamp(), is_run=token.is_run)

    def _forget(self) -> None:
        """Drop, at times, the expired entries, and those that processes have no memory for."""
        if monotonic_seconds() < self._forget_at and len(self._log) <= self._refused.capacity * _SLACK:
            return
        self._forget_at = monotonic_seconds() + _FORGET_SECONDS
        now = utc_now()
        self._known = {
            key: facts
            for key, facts in self._known.items()
            if facts[0] > now and revocation_key(*key) in self._refused
        }
        # An entry of the log that a later expiry has replaced is not needed either.
        self._log = [
            (serial, token)
            for serial, token in self._log
            if self._known.get((token.tenant_id, token.token_id)) == (token.expire_time, token.is_run)
        ]


@asynccontextmanager
async def open_revocation_feed(
    database: Database, listener: Listener, refused: RevokedTokens
) -> AsyncIterator[RevocationFeed]:
    """Read the revocations during the block, and refuse their tokens in this process.

    They have been read once before the block begins, if the database answers in time.
    """
    feed = RevocationFeed(database, refused)
    with listener.subscription(revoked_tokens.CHANNEL) as revoked:
        first = asyncio.Event()
        task = asyncio.create_task(_read_forever(feed, revoked, first), name="read revocations")
        try:
            try:
                async with asyncio.timeout(_FIRST_READ_SECONDS):
                    await first.wait()
            except TimeoutError:
                log.warning("revocations_not_read")
            yield feed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _read_forever(feed: RevocationFeed, revoked: Subscription, first: asyncio.Event) -> None:
    while True:
        try:
            await feed.read()
        except Exception as error:  # noqa: BLE001 - the next read tries again, whatever the error
            raise_if_cancelled()
            log.warning("revocations_not_read", error=error_label(error))
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        first.set()
        await revoked.wait(_POLL_SECONDS)
        await asyncio.sleep(_GATHER_SECONDS)
