"""Tenants' policies in memory, so that a call does not wait for the database."""

from collections import OrderedDict
from dataclasses import dataclass

import structlog
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import unavailable

from spawnmesh_model_router.domain.errors import unknown_tenant
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.operations.batcher import TenantBatcher
from spawnmesh_model_router.operations.budget_counter import BudgetCounter
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.store.policies import get_policy

_MAX_TENANTS = 20_000
# Every policy is read again after five minutes; an outage shorter than the rest stops no call.
_TRUSTED_SECONDS = 600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    """A policy as it was in the database at a monotonic time."""

    policy: TenantPolicy
    read_at: float


class PolicyCache:
    """The policy of each tenant: read on first use, and again after any policy changed.

    While the database is unavailable, the last known policy holds for ten minutes after it was
    read. After that, and for a tenant that is not known, calls are refused: its limits are unknown.
    """

    def __init__(self, bulkhead: DatabaseBulkhead, budgets: BudgetCounter) -> None:
        self._bulkhead = bulkhead
        self._budgets = budgets
        self._fresh: OrderedDict[str, _Known] = OrderedDict()
        self._last_known: OrderedDict[str, _Known] = OrderedDict()
        self._generation = 0
        self._reads: TenantBatcher[None, TenantPolicy | None] = TenantBatcher(self._read)

    async def get(self, tenant_id: str) -> TenantPolicy:
        """Return the policy of the tenant.

        Raises MeshError UNKNOWN_TENANT for a tenant that is not prepared, and
        DEPENDENCY_UNAVAILABLE if its policy cannot be read and none that is new enough is known.
        """
        fresh = self._fresh.get(tenant_id)
        if fresh is not None and _is_trusted(fresh):
            return fresh.policy
        generation, read_at = self._generation, monotonic_seconds()
        try:
            policy = await self._reads.add(tenant_id, None)
        except UNAVAILABLE as error:
            log.warning("policy_not_read", error=type(error).__name__)
            known = self._last_known.get(tenant_id)
            if known is None or not _is_trusted(known):
                raise unavailable("PostgreSQL") from None
            return known.policy
        if policy is None:
            self._last_known.pop(tenant_id, None)
            raise unknown_tenant()
        known = _Known(policy, read_at)
        # Otherwise this may be the policy from before the change.
        if generation == self._generation:
            _remember(self._fresh, tenant_id, known)
            _remember(self._last_known, tenant_id, known)
        return policy

    def learn(self, tenant_id: str, policy: TenantPolicy) -> None:
        """Remember a policy that was just stored, in case it cannot be read."""
        _remember(self._last_known, tenant_id, _Known(policy, monotonic_seconds()))

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

    async def _read(self, tenant_id: str, items: list[None]) -> list[TenantPolicy | None]:
        policy = await self._bulkhead.execute(tenant_id, lambda connection: get_policy(connection, tenant_id))
        return [policy] * len(items)


def _is_trusted(known: _Known) -> bool:
    return monotonic_seconds() - known.read_at < _TRUSTED_SECONDS


def _remember(policies: OrderedDict[str, _Known], tenant_id: str, known: _Known) -> None:
    policies[tenant_id] = known
    policies.move_to_end(tenant_id)
    if len(policies) > _MAX_TENANTS:
        policies.popitem(last=False)
