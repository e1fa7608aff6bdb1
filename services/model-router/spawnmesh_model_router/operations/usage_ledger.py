"""The usage of tenants as a replica knows it while the database is unavailable."""

from collections import OrderedDict
from dataclasses import dataclass, replace

from spawnmesh_core.clock import monotonic_seconds

from spawnmesh_model_router.domain.policy import NOTHING_SPENT, Spent, spent_later
from spawnmesh_model_router.domain.reservations import Reservation

_MAX_TENANTS = 20_000


@dataclass(frozen=True, slots=True)
class Charge:
    """Usage of calls, in tokens and in millionths of the currency."""

    token_count: int
    spend_micros: int

    def __add__(self, other: "Charge") -> "Charge":
        return Charge(self.token_count + other.token_count, self.spend_micros + other.spend_micros)


class UsageLedger:
    """The last counted usage of each tenant, and what this replica has used since without a count.

    Charges that were not stored are kept until they are taken. Reservations are those of the calls
    that are in progress at this replica.
    """

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[Spent, float]] = OrderedDict()
        self._unstored: dict[str, Charge] = {}
        self._reserved: dict[str, dict[str, int]] = {}

    def reserve(self, tenant_id: str, reservation: Reservation) -> bool:
        """Note the reservation if what is spent, and reserved at this replica, is below its limit.

        Return whether it is.
        """
        reserved = sum(self._reserved.get(tenant_id, {}).values())
        if self._now(tenant_id).spend_micros + reserved >= reservation.spend_limit:
            return False
        self.reserved(tenant_id, reservation)
        return True

    def reserved(self, tenant_id: str, reservation: Reservation) -> None:
        """Note a reservation that the database has."""
        self._reserved.setdefault(tenant_id, {})[reservation.reservation_id] = reservation.spend_micros

    def holds(self, tenant_id: str, reservation: Reservation) -> bool:
        """Return whether the reservation is of a call in progress at this replica."""
        return reservation.reservation_id in self._reserved.get(tenant_id, {})

    def release(self, tenant_id: str, reservation_id: str) -> None:
        """Forget a reservation of a call that has ended."""
        if (held := self._reserved.get(tenant_id)) is not None:
            held.pop(reservation_id, None)
            if not held:
                del self._reserved[tenant_id]

    def counted(self, tenant_id: str, spent: Spent) -> None:
        """Note the usage that the database has counted."""
        self._spent[tenant_id] = (spent, monotonic_seconds())
        self._spent.move_to_end(tenant_id)
        if len(self._spent) > _MAX_TENANTS:
            forgotten, _ = self._spent.popitem(last=False)
            self._unstored.pop(forgotten, None)

    def count(self, tenant_id: str, request_count: int) -> Spent:
        """Count requests here, and return the usage, these requests included."""
        spent = self._now(tenant_id)
        spent = replace(spent, request_count=spent.request_count + request_count)
        self.counted(tenant_id, spent)
        return spent

    def charge(self, tenant_id: str, charge: Charge) -> None:
        """Count a charge here, whether it was stored or not."""
        spent = self._now(tenant_id)
        tokens, micros = spent.token_count + charge.token_count, spent.spend_micros + charge.spend_micros
        self.counted(tenant_id, replace(spent, token_count=tokens, spend_micros=micros))

    def keep_unstored(self, tenant_id: str, charge: Charge) -> None:
        """Keep a charge that was not stored."""
        self._unstored[tenant_id] = self._unstored.get(tenant_id, Charge(0, 0)) + charge

    def take_unstored(self, tenant_id: str) -> Charge | None:
        """Take the kept charges of the tenant, to store them; None if there are none."""
        return self._unstored.pop(tenant_id, None)

    def _now(self, tenant_id: str) -> Spent:
        spent, at = self._spent.get(tenant_id, (NOTHING_SPENT, monotonic_seconds()))
        return spent_later(spent, monotonic_seconds() - at)
