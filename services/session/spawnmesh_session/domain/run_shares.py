"""The runs that a claim takes: the shares of the tenants, and the attempts that are used.

One guarded statement takes the runs, because claims of other replicas run at the same time:
`take_claimable_runs`, and `take_lost_runs` for the runs that no claim can take. These functions are
the explanation of both. A test compares them with PostgreSQL on any queues.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The entry of a live run. It is due at the end of its lease if it `is_leased`.

    `again_time` is the next try to end the run after its deadline, `expire_time`.
    """

    run_id: str
    due_time: datetime
    expire_time: datetime
    attempts_left: int
    is_leased: bool = False
    again_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """The entries of one tenant, and what it may have at once.

    `claimable` are those that the runner serves and may claim, `held_count` counts the runs under a
    lease, of every runtime and agent.
    """

    max_running_run_count: int
    run_weight: int
    held_count: int
    claimable: Sequence[QueueEntry]


def is_held(entry: QueueEntry, now: datetime) -> bool:
    """Return whether the lease of a runner lasts."""
    return entry.is_leased and entry.due_time > now


def is_claimable(entry: QueueEntry, now: datetime) -> bool:
    """Return whether a claim may take the run: it waits, or its runner has lost the lease."""
    return entry.due_time <= now < entry.expire_time and entry.attempts_left > 0


def share_out(queues: Sequence[TenantQueue], limit: int, reserved: int) -> list[QueueEntry]:
    """Return the entries that a claim of so many runs takes.

    The rank of an entry is its place in its tenant's queue by due time, behind the runs that the
    tenant has under a lease. No rank is above max_running_run_count. The lowest rank for the weight
    of the tenant is first, then the earliest due time. `reserved` of the limit are left to entries
    of rank 1: the first of tenants that have no run under a lease.
    """
    ranked = [
        (rank, queue.run_weight, entry)
        for queue in queues
        for rank, entry in enumerate(
            sorted(queue.claimable, key=lambda entry: entry.due_time), queue.held_count + 1
        )
        if rank <= queue.max_running_run_count
    ]
    ranked.sort(key=lambda one: (one[0] / one[1], one[2].due_time))
    admitted = [
        entry for place, (rank, _, entry) in enumerate(ranked, 1) if rank == 1 or place <= limit - reserved
    ]
    return admitted[:limit]


def is_runner_lost(served_for: timedelta | None, lease_ttl: timedelta) -> bool:
    """Return whether an expired lease means that its runner is lost.

    Before the service has been serving for as long as a lease lasts, the runner may only have met
    an outage. `served_for` is None if the service has never served.
    """
    return served_for is not None and served_for >= lease_ttl


def attempts_of_take(entry: QueueEntry, served_for: timedelta | None, lease_ttl: timedelta) -> int:
    """Return the number of attempts that a claim of the entry uses: none for an outage."""
    return 1 if not entry.is_leased or is_runner_lost(served_for, lease_ttl) else 0


def is_lost(entry: QueueEntry, now: datetime, served_for: timedelta | None, lease_ttl: timedelta) -> bool:
    """Return whether the sweep is to end the run, because no runner can finish it.

    Its deadline has passed, or its last attempt was used by a runner that is lost.
    """
    if entry.expire_time <= now:
        return entry.again_time is None or entry.again_time <= now
    return entry.attempts_left <= 0 and entry.due_time <= now and is_runner_lost(served_for, lease_ttl)
