"""What holds for each tenant, kept in memory so that no call waits to learn it, and budgets, counted in the database for all replicas."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg_pool import PoolClosed, PoolTimeout
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_postgres.listener import Listener, Subscription

from spawnmesh_model_router import policy_store
from spawnmesh_model_router.domain.policy import Limits, TenantPolicy, exceeded
from spawnmesh_model_router.errors import budget_exceeded

_MOST_TENANTS = 20_000
_REFRESH_SECONDS = 300.0  # Only bounds how long a lost notification can matter.
_WAIT_SECONDS = 0.5
_TRY_AGAIN_SECONDS = 2.0
_PURGE_ROWS = 2_000  # Of one call: what is locked meanwhile is not for long.
_AWAY = (psycopg.Error, PoolTimeout, PoolClosed, TimeoutError)

log = structlog.get_logger()

T = TypeVar("T")


class Policies:
    """Each tenant's policy: read when it is first needed, and again after any was changed.

    While the database is away, the last known policy holds, without a budget.
    """

    def __init__(self, database: Database, changed: Subscription) -> None:
        self._database = database
        self._changed = changed
        self._fresh: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._known: OrderedDict[str, TenantPolicy] = OrderedDict()
        self._changes = 0
        self._away_until = 0.0
        self._given_up: set[asyncio.Task[Any]] = set()
        self._charging: set[asyncio.Task[None]] = set()

    async def of(self, tenant_id: str) -> TenantPolicy:
        """What holds for the tenant now."""
        if (fresh := self._fresh.get(tenant_id)) is not None:
            return fresh
        changes = self._changes
        try:
            policy = await self._reach(tenant_id, lambda link: policy_store.read_policy(link, tenant_id))
        except _AWAY as error:
            log.warning("policy_not_read", error=type(error).__name__)
            return self._known.get(tenant_id, TenantPolicy())
        if changes == self._changes:  # Else it may be the one from before the change.
            _remember(self._fresh, tenant_id, policy)
        _remember(self._known, tenant_id, policy)
        return policy

    async def prepare(self, tenant_id: str, settings_version: int, policy: TenantPolicy) -> int:
        """Keeps the policy if its version is newer; gives the version that holds, here from now on and elsewhere within moments."""
        async with self._database.transaction(tenant_id) as connection:
            await policy_store.enter_prepared(connection, tenant_id)
            version = await policy_store.write_policy(connection, tenant_id, settings_version, policy)
        self.forget()
        return version

    async def purge(self, tenant_id: str) -> tuple[bool, int]:
        """Removes a part of what is kept of the tenant, and keeps nothing from then on; whether nothing is left, and how many rows went."""
        async with self._database.transaction(tenant_id) as connection:
            rows = await policy_store.begin_purge(connection, tenant_id)
        self.forget()
        self._known.pop(tenant_id, None)
        async with self._database.transaction(tenant_id) as connection:
            gone = await policy_store.purge_periods(connection, tenant_id, _PURGE_ROWS)
            if gone < _PURGE_ROWS:
                await policy_store.end_purge(connection, tenant_id)
        return gone < _PURGE_ROWS, rows + gone

    async def admit(self, tenant_id: str, limits: Limits) -> None:
        """Counts a request of a tenant that has limits. Raises MeshError BUDGET_EXCEEDED; lets in while the database is away."""
        if not limits:
            return
        try:
            spent = await self._reach(tenant_id, lambda link: policy_store.take_request(link, tenant_id))
        except _AWAY as error:
            log.warning("budget_not_counted", error=type(error).__name__)
            return
        if (over := exceeded(limits, spent)) is not None:
            raise budget_exceeded(over)

    async def charge(self, tenant_id: str, limits: Limits, token_count: int, spend_micros: int) -> None:
        """Adds what a call of a tenant that has limits used up; also for a caller who is gone meanwhile."""
        if not limits:
            return
        charging = asyncio.create_task(self._charge(tenant_id, token_count, spend_micros))
        self._charging.add(charging)
        charging.add_done_callback(self._charging.discard)
        await asyncio.shield(charging)

    async def _charge(self, tenant_id: str, token_count: int, spend_micros: int) -> None:
        try:
            await self._reach(tenant_id, lambda link: policy_store.charge(link, tenant_id, token_count, spend_micros))
        except _AWAY as error:
            log.warning("usage_not_counted", error=type(error).__name__, tokens=token_count)

    async def _reach(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does the work in a transaction, unless the database does not answer: then nobody waits for it, and for a moment nobody tries."""
        if monotonic_seconds() < self._away_until:
            raise PoolTimeout("the database was away a moment ago")
        task = asyncio.create_task(self._transact(tenant_id, work))
        try:
            await asyncio.wait({task}, timeout=_WAIT_SECONDS)
            if not task.done():
                raise TimeoutError
            return task.result()
        except _AWAY:
            self._away_until = monotonic_seconds() + _TRY_AGAIN_SECONDS
            raise
        finally:
            if not task.done():
                self._give_up(task)

    async def _transact(self, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._database.pipelined(tenant_id) as connection:
            return await work(connection)

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """Ends the work without waiting for that: a silent server is given a second or two to cancel what it does."""
        task.cancel()
        self._given_up.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._given_up.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("given_up_work_failed", error=type(error).__name__)

    def forget(self) -> None:
        """Has every policy read again before it is used."""
        self._changes += 1
        self._fresh.clear()

    async def finish(self) -> None:
        """Waits until what is being counted is counted, or given up."""
        await asyncio.gather(*self._charging, return_exceptions=True)

    async def keep_for_ever(self) -> None:
        """Forgets whenever a policy was changed, here or in another replica."""
        while True:
            await self._changed.wait(_REFRESH_SECONDS)
            self.forget()


@asynccontextmanager
async def open_policies(database: Database, listener: Listener) -> AsyncIterator[Policies]:
    """Follows changes until the block ends."""
    with listener.subscription(policy_store.POLICIES_CHANNEL) as changed:
        policies = Policies(database, changed)
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
