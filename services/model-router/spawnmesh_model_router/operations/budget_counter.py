"""Count the usage of tenants in the database, for all replicas, and refuse calls over budget."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import structlog
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Connection

from spawnmesh_model_router.domain.errors import budget_exceeded, unknown_tenant
from spawnmesh_model_router.domain.policy import Exceeded, Limits, Spent, exceeded
from spawnmesh_model_router.operations.batcher import TenantBatcher
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.operations.usage_ledger import Charge, UsageLedger
from spawnmesh_model_router.store.budgets import charge_usage, count_requests

_MAX_TENANTS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Exhausted:
    limits: Limits
    exceeded: Exceeded
    until: float


class BudgetCounter:
    """Admits calls by the counted usage, and charges their usage.

    Concurrent calls of a tenant share one update of its row. An exhausted budget stays exhausted
    until its period ends, so the counter remembers it and does not read it again.

    While the database is unavailable, this replica counts by itself, from the usage that it knew
    last. It stores the charges with the first count that succeeds, in the periods of that time. A
    charge whose commit was not confirmed may be stored twice.
    """

    def __init__(self, bulkhead: DatabaseBulkhead) -> None:
        self._bulkhead = bulkhead
        self._exhausted: OrderedDict[str, _Exhausted] = OrderedDict()
        self._ledger = UsageLedger()
        self._admissions: TenantBatcher[None, Spent] = TenantBatcher(self._count)
        self._charges: TenantBatcher[Charge, None] = TenantBatcher(self._charge)

    async def admit(self, tenant_id: str, limits: Limits) -> None:
        """Count a request of the tenant. Does nothing if the tenant has no limits.

        Raises MeshError BUDGET_EXCEEDED, and UNKNOWN_TENANT for a tenant that was purged.
        """
        if not limits:
            return
        over = self._remembered(tenant_id, limits)
        if over is None:
            over = exceeded(limits, await self._admissions.add(tenant_id, None))
            if over is not None:
                self._remember(tenant_id, limits, over)
        if over is not None:
            raise budget_exceeded(over)

    async def charge(self, tenant_id: str, limits: Limits, token_count: int, spend_micros: int) -> None:
        """Add the usage of a call, even if the caller is cancelled meanwhile.

        Does nothing if the tenant has no limits.
        """
        if limits:
            await self._charges.add(tenant_id, Charge(token_count, spend_micros))

    def invalidate(self) -> None:
        """Read every budget again before it refuses a call."""
        self._exhausted.clear()

    async def finish(self) -> None:
        """Wait until pending counts and charges have finished or failed."""
        await self._charges.finish()
        await self._admissions.finish()

    async def _count(self, tenant_id: str, items: list[None]) -> list[Spent]:
        """Count the requests together, and return the usage as if they had been counted one
        by one.
        """
        count, unstored = len(items), self._ledger.take_unstored(tenant_id)

        async def work(connection: Connection) -> Spent | None:
            if unstored is not None:
                await charge_usage(connection, tenant_id, unstored.token_count, unstored.spend_micros)
            return await count_requests(connection, tenant_id, count)

        try:
            spent = await self._bulkhead.execute(tenant_id, work)
        except UNAVAILABLE as error:
            log.warning("budget_counted_here", error=type(error).__name__, requests=count)
            if unstored is not None:
                self._ledger.keep_unstored(tenant_id, unstored)
            spent = self._ledger.count(tenant_id, count)
        else:
            if spent is None:
                raise unknown_tenant()
            self._ledger.counted(tenant_id, spent)
        return [replace(spent, request_count=spent.request_count - left) for left in reversed(range(count))]

    async def _charge(self, tenant_id: str, items: list[Charge]) -> list[None]:
        charge = sum(items, Charge(0, 0))

        async def work(connection: Connection) -> None:
            await charge_usage(connection, tenant_id, charge.token_count, charge.spend_micros)

        try:
            await self._bulkhead.execute(tenant_id, work)
        except UNAVAILABLE as error:
            log.warning("usage_kept_here", error=type(error).__name__, tokens=charge.token_count)
            self._ledger.keep_unstored(tenant_id, charge)
        self._ledger.charge(tenant_id, charge)
        return [None] * len(items)

    def _remembered(self, tenant_id: str, limits: Limits) -> Exceeded | None:
        known = self._exhausted.get(tenant_id)
        left = known.until - monotonic_seconds() if known is not None else 0.0
        if known is None or known.limits != limits or left <= 0:
            return None
        return replace(known.exceeded, retry_after_seconds=left)

    def _remember(self, tenant_id: str, limits: Limits, over: Exceeded) -> None:
        self._exhausted[tenant_id] = _Exhausted(limits, over, monotonic_seconds() + over.retry_after_seconds)
        self._exhausted.move_to_end(tenant_id)
        if len(self._exhausted) > _MAX_TENANTS:
            self._exhausted.popitem(last=False)
