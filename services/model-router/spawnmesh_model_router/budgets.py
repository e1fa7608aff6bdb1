"""Tenants' budgets, counted in the database for all replicas. One that is used up stays so for a time, and that is known without asking."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import structlog
from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_model_router import policy_store
from spawnmesh_model_router.domain.policy import Exceeded, Limits, Spent, exceeded
from spawnmesh_model_router.errors import budget_exceeded
from spawnmesh_model_router.reach import NOT_DONE, Reach, Together

_MOST_TENANTS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Over:
    limits: Limits
    exceeded: Exceeded
    until: float


@dataclass(frozen=True, slots=True)
class _Used:
    token_count: int
    spend_micros: int


class Budgets:
    """Lets calls in by what is counted, and counts them. However many calls of a tenant there are at once, they wait for one row together."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._over: OrderedDict[str, _Over] = OrderedDict()
        self._admissions: Together[None, Spent | None] = Together(self._take)
        self._charges: Together[_Used, None] = Together(self._charge)

    async def admit(self, tenant_id: str, limits: Limits) -> None:
        """Counts a request of a tenant that has limits. Raises MeshError BUDGET_EXCEEDED; lets in while the database is away."""
        if not limits:
            return
        over = self._known_over(tenant_id, limits)
        if over is None:
            spent = await self._admissions.add(tenant_id, None)
            over = exceeded(limits, spent) if spent is not None else None
            if over is not None:
                self._remember(tenant_id, limits, over)
        if over is not None:
            raise budget_exceeded(over)

    async def charge(self, tenant_id: str, limits: Limits, token_count: int, spend_micros: int) -> None:
        """Adds what a call of a tenant that has limits used up; also for a caller who is gone meanwhile."""
        if limits:
            await self._charges.add(tenant_id, _Used(token_count, spend_micros))

    def forget(self) -> None:
        """Has every budget looked up again before it is called used up."""
        self._over.clear()

    async def finish(self) -> None:
        """Waits until what is being counted is counted, or given up."""
        await self._charges.finish()
        await self._admissions.finish()

    async def _take(self, tenant_id: str, items: list[None]) -> list[Spent | None]:
        """What is used up with each of the requests that are counted together, as if they had been counted in turn."""
        count = len(items)
        try:
            spent = await self._reach.do(tenant_id, lambda link: policy_store.take_requests(link, tenant_id, count))
        except NOT_DONE as error:
            log.warning("budget_not_counted", error=type(error).__name__, requests=count)
            return [None] * count
        return [replace(spent, request_count=spent.request_count - left) for left in reversed(range(count))]

    async def _charge(self, tenant_id: str, items: list[_Used]) -> list[None]:
        tokens, micros = sum(used.token_count for used in items), sum(used.spend_micros for used in items)
        try:
            await self._reach.do(tenant_id, lambda link: policy_store.charge(link, tenant_id, tokens, micros))
        except NOT_DONE as error:
            log.warning("usage_not_counted", error=type(error).__name__, tokens=tokens)
        return [None] * len(items)

    def _known_over(self, tenant_id: str, limits: Limits) -> Exceeded | None:
        known = self._over.get(tenant_id)
        left = known.until - monotonic_seconds() if known is not None else 0.0
        if known is None or known.limits != limits or left <= 0:
            return None
        return replace(known.exceeded, retry_after_seconds=left)

    def _remember(self, tenant_id: str, limits: Limits, over: Exceeded) -> None:
        self._over[tenant_id] = _Over(limits, over, monotonic_seconds() + over.retry_after_seconds)
        self._over.move_to_end(tenant_id)
        if len(self._over) > _MOST_TENANTS:
            self._over.popitem(last=False)
