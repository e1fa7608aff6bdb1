"""Limits of the claims of harnesses, so that these do not use all connections of the pool."""

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.limiter import FairLimiter, LimiterPolicy

MAX_CLAIMS_OF_TOKEN = 16
"""The claims of one harness token at the same time at a replica, with those that wait for runs."""

# Of all tokens together: the limits of the class WATCH are smaller.
_MAX_CLAIMS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClaimingHarness:
    """The token of a harness, and the tenants that it names: harnesses take turns by tenants."""

    token_id: str
    tenants: str


def claiming_harness(caller: Caller) -> ClaimingHarness | None:
    """Return the harness that claims runs; None for a runner of the mesh.

    A token that names agents alone has its turns for itself.
    """
    if caller.is_of_the_mesh:
        return None
    return ClaimingHarness(caller.token_id, ",".join(sorted(caller.tenants)) or caller.revocation_key)


class ClaimLimits:
    """Bounds the claims of harnesses at this replica. The mesh's own runners have no such bound.

    A claim that waits looks for runs each second and whenever a run of its tenants is queued, if it
    is the first of its token. Many tokens would take every connection of the pool.
    """

    def __init__(self, connection_count: int) -> None:
        self._claims = FairLimiter(
            LimiterPolicy(
                "claims of a token",
                "the token has too many claims at this replica; claim several runs with one call,"
                " or call again later",
                _MAX_CLAIMS,
                tenant_capacity=MAX_CLAIMS_OF_TOKEN,
                max_waiting=0,
            )
        )
        self._turns = FairLimiter(
            LimiterPolicy("claims of harnesses", "", max(1, connection_count // 4), tenant_capacity=1)
        )

    def claim(self, harness: ClaimingHarness | None) -> AbstractAsyncContextManager[None]:
        """Count a claim for the block. Raises POOL_EXHAUSTED if the token has too many of them."""
        return nullcontext() if harness is None else self._claims.hold(harness.token_id)

    def turn(self, harness: ClaimingHarness | None) -> AbstractAsyncContextManager[None]:
        """Wait for a turn to take runs: one at a time for the same tenants, and a quarter of the
        connections for all harnesses.
        """
        return nullcontext() if harness is None else self._turns.hold(harness.tenants)
