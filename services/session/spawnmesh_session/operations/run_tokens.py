"""The tokens of runs, with which runners call for them, and their lifetime."""

from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_runtime.tokens import SERVICE_TOKEN_SECONDS, HarnessClaim, TokenMinter

# Each heartbeat returns a new token, a fraction of a lease after the one before. A service that
# learns of no revocations accepts the token of a killed run for this many leases.
_TOKEN_LEASES = 4
_MIN_TTL = timedelta(seconds=SERVICE_TOKEN_SECONDS)
# A run that is being finalized at its deadline can still finish.
_GRACE = timedelta(minutes=5)
# A heartbeat mints a token some time after it has read the run. The clocks of machines differ.
_REVOCATION_MARGIN = timedelta(minutes=1)


def longest_token_life(lease_ttl: timedelta) -> timedelta:
    """Return the time after the end of a run in which a token of it can be valid."""
    return max(_MIN_TTL, lease_ttl * _TOKEN_LEASES) + _REVOCATION_MARGIN


@dataclass(frozen=True, slots=True)
class RunTokens:
    """Mints the tokens of runs."""

    minter: TokenMinter
    lease_ttl: timedelta

    def mint(
        self,
        tenant_id: str,
        session_id: str,
        run_id: str,
        epoch: int,
        time_left: timedelta,
        *,
        harness: HarnessClaim | None,
        has_budget: bool,
        agent_id: str,
    ) -> str:
        """Mint the token of a run. It is good for four leases, but at least for five minutes.

        It outlives the run's deadline, which is `time_left` away, by five minutes at most. A
        `harness` is the program of the tenant that claimed the run, if it was no runner of the
        mesh. With `has_budget`, its model calls count in budgets. They are listed as the
        spending of the agent.
        """
        ttl = min(max(_MIN_TTL, self.lease_ttl * _TOKEN_LEASES), time_left + _GRACE)
        return self.minter.run_token(
            tenant_id,
            session_id,
            run_id,
            epoch,
            ttl.total_seconds(),
            harness=harness,
            has_budget=has_budget,
            agent_id=agent_id,
        )
