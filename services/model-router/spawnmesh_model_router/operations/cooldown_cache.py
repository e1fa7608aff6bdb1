"""Cooldowns in memory, for the request path. A job keeps them equal to the database."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_postgres.database import ALL_TENANTS, Connection, Database
from spawnmesh_postgres.listener import Subscription
from spawnmesh_runtime.defer import defer

from spawnmesh_model_router.domain.audience import TenantFailure, audience_of
from spawnmesh_model_router.domain.cooldown import Audience, Cooldown, CooldownTarget, causes_cooldown
from spawnmesh_model_router.metrics import RouterMetrics
from spawnmesh_model_router.operations.evidence_log import EvidenceChange, EvidenceLog
from spawnmesh_model_router.store import cooldowns as store
from spawnmesh_model_router.store import unconfirmed_failures
from spawnmesh_model_router.store.cooldowns import CooldownRecord, extend_record

_UNAVAILABLE = (psycopg.Error, PoolTimeout, PoolClosed)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Success:
    """A call that began at `begin_time` and succeeded."""

    begin_time: datetime


class CooldownCache:
    """The cooldowns of all replicas, of each tenant and of all tenants.

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
        self._evidence = EvidenceLog()
        self._sync_lock = asyncio.Lock()  # A sync must not restore what `clear` deletes meanwhile.

    def get(self, target: CooldownTarget, tenant_id: str) -> Cooldown | None:
        """Return the latest cooldown of the target for the tenant. It may have expired.

        That is its own or that of all tenants, whichever ends later.
        """
        found = [
            record.cooldown
            for one in (target, target.of_tenant(tenant_id))
            if (record := self._records.get(one)) is not None
        ]
        return max(found, key=lambda one: one.until, default=None)

    def all(self) -> dict[CooldownTarget, Cooldown]:
        """Return the latest cooldown of each target that failed and has not succeeded since."""
        return {target: record.cooldown for target, record in self._records.items()}

    async def clear(self, target: CooldownTarget) -> bool:
        """Delete the cooldown of the target in the database and here. Return whether there was one.

        A target of all tenants includes the cooldowns of each of them, and the evidence. Raises the
        error of the database if it is unavailable.
        """
        async with self._sync_lock:
            async with self._database.transaction(ALL_TENANTS) as connection:
                await unconfirmed_failures.lock(connection)
                stored = await store.list_cooldowns(connection)
                cleared = {one for one in (*stored, *self._records) if target.includes(one)}
                if not target.tenant_id:
                    await unconfirmed_failures.delete_failure(connection, target)
                for one in sorted(cleared):
                    await store.delete_cooldown(connection, one)
                await store.notify_cooldowns(connection)
            for one in cleared:
                self._unsaved.pop(one, None)
                self._records.pop(one, None)
            self._evidence.forget(target)
            return bool(cleared)

    def record_failure(
        self, target: CooldownTarget, failure: TenantFailure, retry_after: timedelta | None
    ) -> None:
        """Start or extend the cooldown of the target, which names no tenant.

        The evidence decides whether it concerns the tenant alone. Does nothing if the reason causes
        no cooldown in the target's scope.
        """
        if not causes_cooldown(failure.reason, target.scope):
            return
        if not failure.is_conclusive:
            self._extend(target.of_tenant(failure.tenant_id), failure, retry_after)
        unconfirmed = self._evidence.unconfirmed(target)
        if audience_of(failure, unconfirmed) is Audience.ALL_TENANTS:
            last = failure.time if unconfirmed is None else max(failure.time, unconfirmed.time)
            self._evidence.void(target, last)
            self._extend(target, failure, retry_after)
        else:
            self._evidence.add(target, failure, retry_after)
        self._changes.wake()

    def record_success(self, target: CooldownTarget, tenant_id: str, begin_time: datetime) -> None:
        """Delete the failures of the target that happened before the tenant's successful call
        began: the tenant's own, and those that count for all tenants.
        """
        for one in (target, target.of_tenant(tenant_id)):
            record = self._records.get(one)
            if record is not None and record.last_failure_time < begin_time:
                del self._records[one]
                self._unsaved[one] = _Success(begin_time)
                self._changes.wake()
        unconfirmed = self._evidence.unconfirmed(target)
        if unconfirmed is not None and unconfirmed.time < begin_time:
            self._evidence.void(target, begin_time)
            self._changes.wake()

    def evict(self, tenant_id: str) -> None:
        """Forget the tenant's own cooldowns, which its purge has deleted."""
        for changes in (self._records, self._unsaved):
            for target in [one for one in changes if one.tenant_id == tenant_id]:
                del changes[target]
        self._changes.wake()

    def _extend(self, target: CooldownTarget, failure: TenantFailure, retry_after: timedelta | None) -> None:
        record = self._extended(self._records.get(target), target, failure, retry_after)
        self._records[target] = self._unsaved[target] = record

    def _extended(
        self,
        before: CooldownRecord | None,
        target: CooldownTarget,
        failure: TenantFailure,
        retry_after: timedelta | None,
    ) -> CooldownRecord:
        """Return the record after a failure. Count a cooldown that starts."""
        if before is None or not before.cooldown.active(failure.time):
            defer(partial(self._metrics.cooldown_started, target, failure.reason))
        return extend_record(before, target, failure.reason, failure.time, retry_after)

    async def sync(self) -> bool:
        """Save the unsaved changes, then read the cooldowns of all replicas.

        Return False if the database is unavailable.
        """
        async with self._sync_lock:
            try:
                await self._save_all()
                async with self._database.pipelined(ALL_TENANTS) as connection:
                    records = await store.list_cooldowns(connection)
                    failures = await unconfirmed_failures.list_failures(connection)
            except _UNAVAILABLE as error:
                log.warning("cooldowns_not_synced", error=type(error).__name__, unsaved=len(self._unsaved))
                return False
            for target, change in self._unsaved.items():  # Changes since _save_all took its copy.
                if isinstance(change, _Success):
                    records.pop(target, None)
                elif target not in records or records[target].cooldown.until < change.cooldown.until:
                    records[target] = change
            self._records = records
            self._evidence.replace(failures)
            return True

    async def _save_all(self) -> None:
        changes, evidence = dict(self._unsaved), self._evidence.unsaved()
        if not changes and not evidence:
            return
        async with self._database.pipelined(ALL_TENANTS) as connection:
            if evidence:
                await self._save_evidence(connection, evidence)
            # The same order in every replica, so that two replicas cannot deadlock.
            for target, change in sorted(changes.items()):
                if isinstance(change, CooldownRecord):
                    await store.extend_cooldown(connection, target, change)
                else:
                    await store.end_cooldown(connection, target, change.begin_time)
            await store.notify_cooldowns(connection)
        for target, change in changes.items():
            if self._unsaved.get(target) is change:
                del self._unsaved[target]
        self._evidence.saved(evidence)

    async def _save_evidence(
        self, connection: Connection, evidence: Mapping[CooldownTarget, EvidenceChange]
    ) -> None:
        """Save the unconfirmed failures of this replica.

        One that confirms the failure that another replica has saved starts the cooldown of all
        tenants. The replicas do this one after the other.
        """
        await unconfirmed_failures.lock(connection)
        stored = await unconfirmed_failures.list_failures(connection)
        for target, change in evidence.items():
            earlier, failure = change.remaining(stored.get(target)), change.failure
            if failure is not None and audience_of(failure, earlier) is Audience.ALL_TENANTS:
                before = await store.get_cooldown(connection, target)
                record = self._extended(before, target, failure, change.retry_after)
                await store.extend_cooldown(connection, target, record)
                await unconfirmed_failures.delete_failure(connection, target)
            elif failure is not None:
                await unconfirmed_failures.put_failure(connection, target, failure)
            elif earlier is None:
                await unconfirmed_failures.delete_failure(connection, target)
