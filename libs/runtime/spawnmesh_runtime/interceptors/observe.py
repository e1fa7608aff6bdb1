"""Bound the spans and log events of calls without a valid token.

Anyone who reaches the port can send a million calls without a token. Each is refused, counted in
the metrics and in the audit log, which merges them. A hundred a second at a process also have a
span and a log event: enough to see what happens. Refused calls of the services that need no token
are among them.
"""

import structlog
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.token_bucket import TokenBucket

from spawnmesh_runtime.call import Call, Step
from spawnmesh_runtime.interceptors.auth import is_revoked
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens

OBSERVED_PER_SECOND = 100
_LOG_SECONDS = 10.0

log = structlog.get_logger()


class DeniedCalls:
    """The calls of a process that have no valid token, and so count for no tenant's rates.

    All ports of the process share one budget.
    """

    def __init__(self, monotonic: Monotonic = monotonic_seconds) -> None:
        self._monotonic = monotonic
        self._bucket = TokenBucket(OBSERVED_PER_SECOND, monotonic())
        self._unobserved_count = 0
        self._log_time = -_LOG_SECONDS

    def take(self) -> bool:
        """Return whether one more call is observed. Log those that are not, at times."""
        now = self._monotonic()
        is_observed = self._bucket.take(now) == 0
        self._unobserved_count += not is_observed
        if self._unobserved_count and now - self._log_time >= _LOG_SECONDS:
            log.warning("denied_calls_unobserved", count=self._unobserved_count)
            self._unobserved_count, self._log_time = 0, now
        return is_observed


def observed_calls(inner: Step, denied: DeniedCalls, policy: CallPolicy, revoked: RevokedTokens) -> Step:
    """Leave calls without a valid token unobserved if there are too many of them."""

    async def step(call: Call) -> object:
        if call.caller is None or is_revoked(call.caller, policy, revoked):
            call.is_observed = denied.take()
        return await inner(call)

    return step
