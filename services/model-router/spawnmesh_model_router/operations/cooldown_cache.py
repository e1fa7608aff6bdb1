"""Cooldowns in memory, for the request path. A job keeps them equal to the database."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Subscription
from spawnmesh_runtime.defer import defer

from spawnmesh_model_router.domain.cooldown import Cooldown, CooldownTarget, causes_cooldown, extend
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.store.cooldowns import (
    MESH_TENANT,
    CooldownRecord,
    delete_cooldown,
    end_cooldown,
    extend_cooldown,
    list_cooldowns,
    notify_cooldowns,
)

_UNAVAILABLE = (psycopg.Error, PoolTimeout, PoolClosed)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Success:
    """A call that began at `begin_time` and succeeded."""

    begin_time: datetime


class CooldownCache:
    """The cooldowns of all replicas.

    A change is visible here at once and is saved shortly after: the cache wakes `changes`, and the
    job `sync_cooldowns` calls `sync`. While the database is unavailable, a change holds in this
    process only.
    """

    def __init__(self, database: Database, changes: Subscription, metrics: RouterMetrics) -> None:
        self._database = database
        self._changes = changes
        self._metrics = metrics
        self._records: dict[CooldownTarget, CooldownRecord] = {}
        self._unsaved: dict[CooldownTarget, CooldownRecord | _Success] = {}
        self._sync_lock = asyncio.Lock()  # A sync must not restore what `clear` deletes meanwhile.

    def get(self, target: CooldownTarget) -> Cooldown | None:
        """Return the latest cooldown of the target. It may have expired."""
        record = self._records.get(target)
        return record.cooldown if record is not None else None

    def all(self) -> dict[CooldownTarget, Cooldown]:
        """Return the latest cooldown of each target that failed and has not succeeded since."""
        return {target: record.cooldown for target, record in self._records.items()}

    async def clear(self, target: CooldownTarget) -> bool:
        """Delete the cooldown of the target in the database and here. Return whether there was one.

        Raises the error of the database if it is unavailable.
        """
        async with self._sync_lock:
            async with self._database.transaction(MESH_TENANT) as connection:
                was_saved = await delete_cooldown(connection, target)
                await notify_cooldowns(connection)
            self._unsaved.pop(target, None)
            return self._records.pop(target, None) is not None or was_saved

    def record_failure(
        self, target: CooldownTarget, reason: FailoverReason, now: datetime, retry_after: timedelta | None
    ) -> None:
        """Start or extend the cooldown of the target.

        Does nothing if the reason causes no cooldown in the target's scope.
        """
        before = self.get(target)
        cooldown = extend(before, reason, now, retry_after, target.scope)
        if cooldown is not None and causes_cooldown(reason, target.scope):
            if before is None or not before.active(now):
                defer(partial(self._metrics.cooldown_started, target.provider, target.scope, reason))
            self._records[target] = CooldownRecord(cooldown, now)
            self._save(target, self._records[target])

    def record_success(self, target: CooldownTarget, begin_time: datetime) -> None:
        """Delete the failures of the target that happened before the successful call began."""
        record = self._records.get(target)
        if record is not None and record.last_failure_time < begin_time:
            del self._records[target]
            self._save(target, _Success(begin_time))

    def _save(self, target: CooldownTarget, change: CooldownRecord | _Success) -> None:
        self._unsaved[target] = change
        self._changes.wake()

    async def sync(self) -> bool:
        """Save the unsaved changes, then read the cooldowns of all replicas.

        Return False if the database is unavailable.
        """
        async with self._sync_lock:
            try:
                await self._save_all()
                async with self._database.pipelined(MESH_TENANT) as connection:
                    records = await list_cooldowns(connection)
            except _UNAVAILABLE as error:
                log.warning("cooldowns_not_synced", error=type(error).__name__, unsaved=len(self._unsaved))
                return False
            for target, change in self._unsaved.items():  # Changes since _save_all took its copy.
                if isinstance(change, _Success):
                    records.pop(target, None)
                elif target not in records or records[target].cooldown.until < change.cooldown.until:
                    records[target] = change
            self._records = records
            return True

    async def _save_all(self) -> None:
        changes = dict(self._unsaved)
        if not changes:
            return
        async with self._database.pipelined(MESH_TENANT) as connection:
            # The same order in every replica, so that two replicas cannot deadlock.
            for target, change in sorted(changes.items(), key=lambda item: (item[0].scope, item[0].name)):
                if isinstance(change, CooldownRecord):
                    await extend_cooldown(connection, target, change)
                else:
                    await end_cooldown(connection, target, change.begin_time)
            await notify_cooldowns(connection)
        for target, change in changes.items():
            if self._unsaved.get(target) is change:
                del self._unsaved[target]
