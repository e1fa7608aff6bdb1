"""Count the usage of tenants in the database, for all replicas, and refuse calls over budget."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_postgres.database import Connection

from spawnmesh_model_router.domain.errors import budget_exceeded, unknown_tenant
from spawnmesh_model_router.domain.policy import BudgetKind, Exceeded, Limits, Spent, exceeded
from spawnmesh_model_router.domain.reservations import RETRY_SECONDS, Reservation
from spawnmesh_model_router.operations.batcher import TenantBatcher
from spawnmesh_model_router.operations.bulkhead import UNAVAILABLE, DatabaseBulkhead
from spawnmesh_model_router.operations.usage_ledger import Charge, UsageLedger
from spawnmesh_model_router.store.budgets import charge_usage, count_requests, reserve_spending

_MAX_TENANTS = 20_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Counted:
    """The usage with a request, and whether its reservation is held; it is if there is none."""

    spent: Spent
    is_reserved: bool


@dataclass(frozen=True, slots=True)
class _Settlement:
    """The usage of a call and, at the end of the call, its reservation."""

    charge: Charge
    reservation_id: str


@dataclass(frozen=True, slots=True)
class _Exhausted:
    limits: Limits
    exceeded: Exceeded
    until: float


class BudgetCounter:
    """Admits calls by the counted usage, and charges their usage.

    Concurrent calls of a tenant share one update of its row. With a limit of the spending, the
    largest cost of a call is reserved before it, and counts as spent until the call is settled. So
    calls in progress together exceed the limit by the cost of one of them.

    An exhausted budget stays exhausted until its period ends, so the counter remembers it and does
    not read it again.

    While the database is unavailable, this replica counts by itself, from the usage that it knew
    last. It stores the charges with the first count that succeeds, in the periods of that time. A
    charge whose commit was not confirmed may be stored twice.
    """

    def __init__(self, bulkhead: DatabaseBulkhead) -> None:
        self._bulkhead = bulkhead
        self._exhausted: OrderedDict[str, _Exhausted] = OrderedDict()
        self._ledger = UsageLedger()
        self._admissions: TenantBatcher[Reservation | None, _Counted] = TenantBatcher(self._count)
        self._charges: TenantBatcher[_Settlement, None] = TenantBatcher(self._charge)
        # Reservations that are being made; those whose call has ended meanwhile are True.
        self._pending: dict[str, bool] = {}

    async def admit(self, tenant_id: str, limits: Limits, reservation: Reservation | None = None) -> None:
        """Count a request of the tenant, and hold its reservation until it is settled. Does nothing
        if the tenant has no limits.

        Raises MeshError BUDGET_EXCEEDED, and UNKNOWN_TENANT for a tenant that was purged. If it
        raises or is cancelled, call `settle`: the reservation may be held.
        """
        if not limits:
            return
        over = self._remembered(tenant_id, limits)
        if over is None:
            if reservation is not None:
                self._pending[reservation.reservation_id] = False
            counted = await self._admissions.add(tenant_id, reservation)
            over = exceeded(limits, counted.spent)
            if over is not None:
                self._remember(tenant_id, limits, over)
            elif not counted.is_reserved:
                over = Exceeded(BudgetKind.SPEND_PER_DAY, RETRY_SECONDS, by_calls_in_progress=True)
        if over is not None:
            raise budget_exceeded(over)

    async def charge(
        self,
        tenant_id: str,
        limits: Limits,
        token_count: int,
        spend_micros: int,
        reservation: Reservation | None = None,
    ) -> None:
        """Add the usage of a call, even if the caller is cancelled meanwhile, and release its
        reservation in the same transaction.

        Does nothing if the tenant has no limits.
        """
        if limits:
            released = reservation.reservation_id if reservation is not None else ""
            await self._charges.add(tenant_id, _Settlement(Charge(token_count, spend_micros), released))

    async def settle(self, tenant_id: str, limits: Limits, reservation: Reservation | None) -> None:
        """Release the reservation of a call that costs nothing more. It may be released already."""
        if reservation is None:
            return
        if reservation.reservation_id in self._pending:
            self._pending[reservation.reservation_id] = True
        elif self._ledger.holds(tenant_id, reservation):
            await self.charge(tenant_id, limits, 0, 0, reservation)

    def invalidate(self) -> None:
        """Read every budget again before it refuses a call."""
        self._exhausted.clear()

    async def finish(self) -> None:
        """Wait until pending counts and charges have finished or failed."""
        await self._charges.finish()
        await self._admissions.finish()

    async def _count(self, tenant_id: str, items: list[Reservation | None]) -> list[_Counted]:
        """Count the requests together, and return the usage as if they had been counted one
        by one.
        """
        wanted = [one for one in items if one is not None]
        try:
            return await self._count_and_reserve(tenant_id, items, wanted)
        finally:
            ended = [one for one in wanted if self._pending.pop(one.reservation_id)]
            left = [one for one in ended if self._ledger.holds(tenant_id, one)]
            if left:
                await self._charge(tenant_id, [_Settlement(Charge(0, 0), one.reservation_id) for one in left])

    async def _count_and_reserve(
        self, tenant_id: str, items: list[Reservation | None], wanted: list[Reservation]
    ) -> list[_Counted]:
        count, unstored = len(items), self._ledger.take_unstored(tenant_id)

        async def work(connection: Connection) -> tuple[Spent | None, frozenset[str]]:
            if unstored is not None or wanted:
                due = unstored or Charge(0, 0)
                await charge_usage(connection, tenant_id, due.token_count, due.spend_micros, ())
            spent = await count_requests(connection, tenant_id, count)
            held = await reserve_spending(connection, tenant_id, wanted) if wanted else frozenset[str]()
            return spent, held

        try:
            spent, held = await self._bulkhead.execute(tenant_id, work)
        except UNAVAILABLE as error:
            log.warning("budget_counted_here", error=type(error).__name__, requests=count)
            if unstored is not None:
                self._ledger.keep_unstored(tenant_id, unstored)
            spent = self._ledger.count(tenant_id, count)
            held = frozenset(one.reservation_id for one in wanted if self._ledger.reserve(tenant_id, one))
        else:
            if spent is None:
                raise unknown_tenant()
            self._ledger.counted(tenant_id, spent)
            for one in wanted:
                if one.reservation_id in held:
                    self._ledger.reserved(tenant_id, one)
        left = range(count - 1, -1, -1)
        return [
            _Counted(
                replace(spent, request_count=spent.request_count - later),
                is_reserved=item is None or item.reservation_id in held,
            )
            for item, later in zip(items, left, strict=True)
        ]

    async def _charge(self, tenant_id: str, items: list[_Settlement]) -> list[None]:
        charge = sum((item.charge for item in items), Charge(0, 0))
        ended: Sequence[str] = [item.reservation_id for item in items if item.reservation_id]

        async def work(connection: Connection) -> None:
            await charge_usage(
                connection, tenant_id, charge.token_count, charge.spend_micros, ended if ended else None
            )

        try:
            await self._bulkhead.execute(tenant_id, work)
        except UNAVAILABLE as error:
            # The reservations in the database expire.
            log.warning("usage_kept_here", error=type(error).__name__, tokens=charge.token_count)
            self._ledger.keep_unstored(tenant_id, charge)
        self._ledger.charge(tenant_id, charge)
        for reservation_id in ended:
            self._ledger.release(tenant_id, reservation_id)
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
