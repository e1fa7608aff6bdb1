"""The rule by which ClaimRuns shares the places of runners between tenants, as a model."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """A tenant's weight, its most running runs, and its waiting and running ones."""

    waiting: int
    running: int = 0
    weight: int = 1
    cap: int = 32


def claimed(tenants: Mapping[str, Share], limit: int, reserved: int = 0) -> Counter[str]:
    """Return how many runs of each tenant one claim gets. Ties go to the tenant that is first."""
    ranked = sorted(
        (
            (rank / share.weight, order, rank, tenant)
            for order, (tenant, share) in enumerate(tenants.items())
            for rank in range(share.running + 1, share.running + share.waiting + 1)
            if rank <= share.cap
        ),
    )
    admitted = [
        tenant
        for place, (_, _, rank, tenant) in enumerate(ranked, start=1)
        if rank == 1 or place <= limit - reserved
    ]
    return Counter(admitted[:limit])
