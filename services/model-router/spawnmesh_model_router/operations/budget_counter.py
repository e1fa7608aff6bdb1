"""Count the usage of tenants in the database, for all replicas, and refuse calls over budget."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import structlog
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_model_router.domain.errors import budget_exceeded
from spawnmesh_model_router.domain.policy import Exceeded, Limits, Spent, exceeded
from spawnmesh_model_router.operations.batcher import TenantBatcher
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.store.budgets import charge_usage, count_requests

_MAX_TENANTS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Exhausted:
    limits: Limits
    exceeded: Exceeded
    until: float


@dataclass(frozen=True, slots=True)
class _Charge:
    token_count: int
    spend_micros: int


class BudgetCounter:
    """Admits calls by the counted usage, and charges their usage.

    Concurrent calls of a tenant share one update of its row. An exhausted budget stays exhausted
    until its period ends, so the counter remembers it and does not read it again.
    """

    def __init__(self, bulkhead: DatabaseBulkhead) -> None:
        self._bulkhead = bulkhead
        self._exhausted: OrderedDict[str, _Exhausted] = OrderedDict()
        self._admissions: TenantBatcher[None, Spent | None] = TenantBatcher(self._count)
        self._charges: TenantBatcher[_Charge, None] = TenantBatcher(self._charge)

    async def admit(self, tenant_id: str, limits: Limits) -> None:
        """Count a request of the tenant. Does nothing if the tenant has no limits.

        Raises MeshError BUDGET_EXCEEDED. Admits the request if the database is unavailable.
        """
        if not limits:
            return
        over = self._remembered(tenant_id, limits)
        if over is None:
            spent = await self._admissions.add(tenant_id, None)
            over = exceeded(limits, spent) if spent is not None else None
            if over is not None:
                self._remember(tenant_id, limits, over)
        if over is not None:
            raise budget_exceeded(over)

    async def charge(self, tenant_id: str, limits: Limits, token_count: int, spend_micros: int) -> None:
        """Add the usage of a call, even if the caller is cancelled meanwhile.

        Does nothing if the tenant has no limits.
        """
        if limits:
            await self._charges.add(tenant_id, _Charge(token_count, spend_micros))

    def invalidate(self) -> None:
        """Read every budget again before it refuses a call."""
        self._exhausted.clear()

    async def finish(self) -> None:
        """Wait until pending counts and charges have finished or failed."""
        await self._charges.finish()
        await self._admissions.finish()

    async def _count(self, tenant_id: str, items: list[None]) -> list[Spent | None]:
        """Count the requests together, and return the usage as if they had been counted one
        by one.
        """
        count = len(items)
        try:
            spent = await self._bulkhead.execute(
                tenant_id, lambda connection: count_requests(connection, tenant_id, count)
            )
        except UNAVAILABLE as error:
            log.warning("budget_not_counted", error=type(error).__name__, requests=count)
            return [None] * count
        return [replace(spent, request_count=spent.request_count - left) for left in reversed(range(count))]

    async def _charge(self, tenant_id: str, items: list[_Charge]) -> list[None]:
        tokens, micros = sum(item.token_count for item in items), sum(item.spend_micros for item in items)
        try:
            await self._bulkhead.execute(
                tenant_id, lambda connection: charge_usage(connection, tenant_id, tokens, micros)
            )
        except UNAVAILABLE as error:
            log.warning("usage_not_counted", error=type(error).__name__, tokens=tokens)
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
