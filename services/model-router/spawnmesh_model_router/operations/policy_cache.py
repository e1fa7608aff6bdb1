"""Tenants' policies in memory, so that a call does not wait for the database."""

from collections import OrderedDict

import structlog

from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.operations.batcher import TenantBatcher
from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.store.policies import get_policy

_MAX_TENANTS = 20_000

log = structlog.get_logger()


class PolicyCache:
    """The policy of each tenant: read on first use, and again after any policy changed.

    While the database is unavailable, the last known policy holds; a tenant without one has no
    limits.
    """

    def __init__(self, bulkhead: DatabaseBulkhead, budgets: BudgetCounter) -> None:
        self._bulkhead = bulkhead
        self._budgets = budgets
        self._fresh: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._last_known: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._generation = 0
        self._reads: TenantBatcher[None, TenantPolicy] = TenantBatcher(self._read)

    async def get(self, tenant_id: str) -> TenantPolicy:
        """Return the policy of the tenant."""
        if (fresh := self._fresh.get(tenant_id)) is not None:
            return fresh
        generation = self._generation
        try:
            policy = await self._reads.add(tenant_id, None)
        except UNAVAILABLE as error:
            log.warning("policy_not_read", error=type(error).__name__)
            return self._last_known.get(tenant_id, TenantPolicy())
        # Otherwise this may be the policy from before the change.
        if generation == self._generation:
            _remember(self._fresh, tenant_id, policy)
        _remember(self._last_known, tenant_id, policy)
        return policy

    def invalidate(self) -> None:
        """Read every policy again before its next use, and every budget before it refuses
        a call.
        """
        self._generation += 1
        self._fresh.clear()
        self._budgets.invalidate()

    def evict(self, tenant_id: str) -> None:
        """Forget the last known policy of the tenant, too."""
        self.invalidate()
        self._last_known.pop(tenant_id, None)

    async def finish(self) -> None:
        """Wait until pending reads, counts and charges have finished or failed."""
        await self._reads.finish()
        await self._budgets.finish()

    async def _read(self, tenant_id: str, items: list[None]) -> list[TenantPolicy]:
        policy = await self._bulkhead.execute(tenant_id, lambda connection: get_policy(connection, tenant_id))
        return [policy] * len(items)


def _remember(policies: OrderedDict[str, TenantPolicy], tenant_id: str, policy: TenantPolicy) -> None:
    policies[tenant_id] = policy
    policies.move_to_end(tenant_id)
    if len(policies) > _MAX_TENANTS:
        policies.popitem(last=False)
