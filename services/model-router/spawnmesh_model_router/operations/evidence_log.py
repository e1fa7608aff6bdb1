"""The failures that no other tenant has confirmed, in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_model_router.domain.audience import TenantFailure
from spawnmesh_model_router.domain.cooldown import CooldownTarget


@dataclass(frozen=True, slots=True)
class EvidenceChange:
    """A change of a target's evidence: failures up to `void_until` no longer count, and then there
    was an unconfirmed failure. `retry_after` is the wait that this failure asked for.
    """

    void_until: datetime | None
    failure: TenantFailure | None = None
    retry_after: timedelta | None = None

    def remaining(self, stored: TenantFailure | None) -> TenantFailure | None:
        """Return the stored failure, or None if it no longer counts."""
        if stored is None or self.void_until is None or stored.time > self.void_until:
            return stored
        return None


class EvidenceLog:
    """The last unconfirmed failure of each target, and the changes that are not saved.

    A target names no tenant.
    """

    def __init__(self) -> None:
        self._failures: dict[CooldownTarget, TenantFailure] = {}
        self._unsaved: dict[CooldownTarget, EvidenceChange] = {}

    def unconfirmed(self, target: CooldownTarget) -> TenantFailure | None:
        """Return the last failure of the target that counts and is not confirmed."""
        return self._failures.get(target)

    def add(self, target: CooldownTarget, failure: TenantFailure, retry_after: timedelta | None) -> None:
        """Add a failure. It replaces the one before."""
        before = self._unsaved.get(target)
        self._failures[target] = failure
        void_until = before.void_until if before is not None else None
        self._unsaved[target] = EvidenceChange(void_until, failure, retry_after)

    def void(self, target: CooldownTarget, until: datetime) -> None:
        """Count no failure of the target up to this time: they are confirmed, or refuted."""
        self._failures.pop(target, None)
        self._unsaved[target] = EvidenceChange(until)

    def forget(self, target: CooldownTarget) -> None:
        """Forget the evidence of a target, which was deleted in the database."""
        self._failures.pop(target, None)
        self._unsaved.pop(target, None)

    def unsaved(self) -> dict[CooldownTarget, EvidenceChange]:
        """Return the changes that are not saved, in an order that all replicas share."""
        return dict(sorted(self._unsaved.items()))

    def saved(self, changes: Mapping[CooldownTarget, EvidenceChange]) -> None:
        """Record that these changes are saved."""
        for target, change in changes.items():
            if self._unsaved.get(target) is change:
                del self._unsaved[target]

    def replace(self, failures: dict[CooldownTarget, TenantFailure]) -> None:
        """Take over the failures of the database, and apply what is not saved yet."""
        self._failures = failures
        for target, change in self._unsaved.items():
            remaining = change.failure or change.remaining(failures.get(target))
            if remaining is not None:
                failures[target] = remaining
            else:
                failures.pop(target, None)
