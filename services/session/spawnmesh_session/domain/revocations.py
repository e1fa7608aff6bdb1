"""The limit of revoked tokens of clients, and the time for which they are refused.

The statement `revoke_token` decides alike, with the limit and the times as parameters: it counts
and writes in one step, by the clock of the database. A test compares the two.
"""

from datetime import datetime, timedelta

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

MAX_REVOKED_TOKENS = 10_000
"""The tokens of clients that a tenant has revoked and that have not expired. Concurrent calls may
exceed it by a few. Tokens of runs that have ended do not count."""


def may_revoke(other_count: int, limit: int) -> bool:
    """Return whether a tenant with so many other revoked tokens may revoke one, new or not."""
    return other_count < limit


def refused_until(
    expire_time: datetime | None, now: datetime, *, kept_for: timedelta, max_lifetime: timedelta
) -> datetime:
    """Return the time until which a revoked token is refused, which is never in the past.

    It is refused for `kept_for` after it has expired, and for no longer than any token lives. With
    no expiry given, for as long as that.
    """
    longest = now + max_lifetime
    return longest if expire_time is None else min(max(expire_time, now) + kept_for, longest)


def revocations_exceeded() -> MeshError:
    """Build the refusal of another revoked token."""
    return MeshError(
        Reason.REVOCATION_COUNT_EXCEEDED,
        "the tenant has as many revoked tokens as it may; some are forgotten as they expire",
        facts={"limit": MAX_REVOKED_TOKENS},
    )
