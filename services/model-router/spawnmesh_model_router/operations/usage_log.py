"""The spending and the failed calls of tenants, on their way into the database."""

import asyncio

import structlog
from spawnmesh_core.clock import Clock, utc_now
from spawnmesh_postgres.database import Connection

from spawnmesh_model_router.domain.candidates import ModelRef
from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.events import Attempt
from spawnmesh_model_router.domain.failures import AfterFailure, FailureCounts, FailureKey, first_kept_hour
from spawnmesh_model_router.domain.spend import Spend, SpendKey, first_kept_day, fold_spend
from spawnmesh_model_router.domain.usage_sums import UsageSums, one_spend
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.store.failures import add_failures
from spawnmesh_model_router.store.spend import add_spend, list_agents

_MAX_SUMS = 100_000
"""Sums in memory, of all tenants: some tens of MB."""
_FINISH_SECONDS = 2.0

log = structlog.get_logger()


class UsageLog:
    """Sums up what calls were charged and how they failed, and adds the sums to the tenants' rows.

    A call only adds to a sum in memory: `flush` stores the sums of one tenant after the other, in
    transactions of their own. What could not be stored is kept for the next flush. What exceeds the
    bound of the memory while the database is away is lost, and logged. A sum whose commit was not
    confirmed may be stored twice.
    """

    def __init__(self, bulkhead: DatabaseBulkhead, clock: Clock = utc_now) -> None:
        self._bulkhead = bulkhead
        self._clock = clock
        self._pending: dict[str, UsageSums] = {}
        self._sum_count = 0
        self._lost_count = 0
        self._has_pending = asyncio.Event()
        # `finish` owns the task. A flush that is cancelled might store its sums and keep them too.
        self._flushing: asyncio.Task[None] | None = None

    def note_charge(self, tenant_id: str, agent_id: str, model: ModelRef, charged: ChargedUsage) -> None:
        """Add an answer that was charged. Does not wait."""
        key = SpendKey(self._clock().date(), agent_id, str(model))
        self._add(tenant_id, one_spend(key, Spend(1, charged)))

    def note_failure(self, tenant_id: str, attempt: Attempt, after: AfterFailure) -> None:
        """Add a failed call of a provider, in the hour of its end. Does not wait."""
        self._add(tenant_id, UsageSums(failures={FailureKey.of(attempt): FailureCounts.of(after)}))

    async def wait(self) -> None:
        """Wait until there is something to store."""
        await self._has_pending.wait()

    async def flush(self) -> None:
        """Store all sums, one tenant after the other. It goes on if its caller is cancelled."""
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(self._flushing)

    async def finish(self) -> None:
        """Store what is left, if that takes at most 2 s. No call adds anything any more."""
        try:
            async with asyncio.timeout(_FINISH_SECONDS):
                if self._flushing is not None:
                    await asyncio.shield(self._flushing)
                # The slots of the bulkhead, which no call needs any more, limit them.
                await asyncio.gather(*map(self._store, [*self._pending]))
        except TimeoutError:
            pass
        if self._sum_count:
            log.warning("usage_not_stored", sums=self._sum_count)

    def forget(self, tenant_id: str) -> None:
        """Drop what is not stored of a purged tenant."""
        self._take(tenant_id)

    async def _flush(self) -> None:
        for tenant_id in [*self._pending]:
            await self._store(tenant_id)
        if self._lost_count:
            log.warning("usage_lost", calls=self._lost_count)
            self._lost_count = 0

    async def _store(self, tenant_id: str) -> None:
        if not (taken := self._take(tenant_id)):
            return
        spends, failures = taken.spend.sums, taken.failures
        days = sorted({key.day for key in spends})
        now = self._clock()

        async def work(connection: Connection) -> None:
            if spends:
                agents = await list_agents(connection, tenant_id, days)
                await add_spend(connection, tenant_id, fold_spend(spends, agents), first_kept_day(now))
            if failures:
                await add_failures(connection, tenant_id, failures, first_kept_hour(now))

        try:
            await self._bulkhead.execute(tenant_id, work)
        except UNAVAILABLE as error:
            log.info("usage_sums_kept", error=type(error).__name__, sums=len(taken))
            self._add(tenant_id, taken)

    def _take(self, tenant_id: str) -> UsageSums:
        taken = self._pending.pop(tenant_id, UsageSums())
        self._sum_count -= len(taken)
        if not self._pending:
            self._has_pending.clear()
        return taken

    def _add(self, tenant_id: str, more: UsageSums) -> None:
        known = self._pending.get(tenant_id) or UsageSums()
        before = len(known)
        self._lost_count += known.add(more, capacity=max(_MAX_SUMS - self._sum_count, 0))
        self._sum_count += len(known) - before
        if known:
            self._pending[tenant_id] = known
            self._has_pending.set()
