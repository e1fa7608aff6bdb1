"""What holds for each tenant, kept in memory so that no call waits to learn it."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from spawnmesh_postgres.database import Database
from spawnmesh_postgres.listener import Listener, Subscription

from spawnmesh_model_router import policy_store
from spawnmesh_model_router.budgets import Budgets
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.reach import NOT_DONE, Reach, Together

_MOST_TENANTS = 20_000
_REFRESH_SECONDS = 300.0  # Only bounds how long a lost notification can matter.
_PURGE_ROWS = 2_000  # Of one call: what is locked meanwhile is not for long.

log = structlog.get_logger()


class Policies:
    """Each tenant's policy: read when it is first needed, and again after any was changed.

    While the database is away, the last known policy holds, without a budget.
    """

    def __init__(self, database: Database, changed: Subscription, reach: Reach) -> None:
        self._database = database
        self._reach = reach
        self.budgets = Budgets(reach)
        self._changed = changed
        self._fresh: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._known: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._changes = 0
        self._reads: Together[None, TenantPolicy] = Together(self._read)

    async def of(self, tenant_id: str) -> TenantPolicy:
        """What holds for the tenant now."""
        if (fresh := self._fresh.get(tenant_id)) is not None:
            return fresh
        changes = self._changes
        try:
            policy = await self._reads.add(tenant_id, None)
        except NOT_DONE as error:
            log.warning("policy_not_read", error=type(error).__name__)
            return self._known.get(tenant_id, TenantPolicy())
        if changes == self._changes:  # Else it may be the one from before the change.
            _remember(self._fresh, tenant_id, policy)
        _remember(self._known, tenant_id, policy)
        return policy

    async def prepare(self, tenant_id: str, settings_version: int, policy: TenantPolicy) -> int:
        """Keeps the policy if its version is newer; gives the version that holds, here from now on and elsewhere within moments."""
        async with self._database.transaction(tenant_id) as connection:
            await policy_store.enter_prepared(connection, tenant_id, settings_version)
            version = await policy_store.write_policy(connection, tenant_id, settings_version, policy)
        self.forget()
        return version

    async def purge(self, tenant_id: str, settings_version: int) -> tuple[bool, int]:
        """Removes a part of what is kept of the tenant, and keeps nothing from then on; whether nothing is left, and how many rows went.

        Removes nothing of a tenant with settings newer than this version, also where that is made ready meanwhile; 0 is whatever tenant there
        is.
        """
        async with self._database.transaction(tenant_id) as connection:
            rows = await policy_store.begin_purge(connection, tenant_id, settings_version)
        if rows is None:
            return True, 0
        self.forget()
        self._known.pop(tenant_id, None)
        async with self._database.transaction(tenant_id) as connection:
            if not await policy_store.lock_purge(connection, tenant_id, settings_version):
                return True, rows
            gone = await policy_store.purge_periods(connection, tenant_id, _PURGE_ROWS)
            if gone < _PURGE_ROWS:
                await policy_store.end_purge(connection, tenant_id)
        return gone < _PURGE_ROWS, rows + gone

    async def _read(self, tenant_id: str, items: list[None]) -> list[TenantPolicy]:
        policy = await self._reach.do(tenant_id, lambda link: policy_store.read_policy(link, tenant_id))
        return [policy] * len(items)

    def forget(self) -> None:
        """Has every policy read again before it is used."""
        self._changes += 1
        self._fresh.clear()
        self.budgets.forget()

    async def finish(self) -> None:
        """Waits until what is being read or counted is, or is given up."""
        await self._reads.finish()
        await self.budgets.finish()

    async def keep_for_ever(self) -> None:
        """Forgets whenever a policy was changed, here or in another replica."""
        while True:
            await self._changed.wait(_REFRESH_SECONDS)
            self.forget()


@asynccontextmanager
async def open_policies(database: Database, listener: Listener, max_connections: int) -> AsyncIterator[Policies]:
    """Follows changes until the block ends. Of the database's `max_connections` one is left to others."""
    with listener.subscription(policy_store.POLICIES_CHANNEL) as changed:
        policies = Policies(database, changed, Reach(database, max(max_connections - 1, 1)))
        task = asyncio.create_task(policies.keep_for_ever(), name="keep policies")
        try:
            yield policies
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await policies.finish()


def _remember(policies: OrderedDict[str, TenantPolicy], tenant_id: str, policy: TenantPolicy) -> None:
    policies[tenant_id] = policy
    policies.move_to_end(tenant_id)
    if len(policies) > _MOST_TENANTS:
        policies.popitem(last=False)
