"""A flood of calls without a valid token leaves a bounded number of spans and log events."""

from typing import Any

from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.call import Call
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.interceptors.observe import OBSERVED_PER_SECOND, DeniedCalls, observed_calls
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens

from tests.support.captured_logs import captured_warnings

ANN = Caller(CallerKind.CLIENT, "ann", "acme", revocation_key="acme/own")
STOLEN = Caller(CallerKind.CLIENT, "ann", "acme", revocation_key="acme/stolen")


async def observed(denied: DeniedCalls, caller: Caller | None, count: int) -> int:
    """Return how many of so many calls are observed."""
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    revoked.add("acme/stolen", utc_now().timestamp() + 3600)

    async def is_observed(call: Call) -> bool:
        return call.is_observed

    policy = CallPolicy(frozenset(CallerKind), frozenset())
    step = observed_calls(is_observed, denied, policy, revoked)
    context: Any = None
    return sum([bool(await step(Call(context, caller=caller))) for _ in range(count)])


async def test_calls_without_a_token_and_with_a_revoked_one_share_a_rate() -> None:
    denied = DeniedCalls(lambda: 5.0)
    assert await observed(denied, None, 60) == 60
    assert await observed(denied, STOLEN, 60) == OBSERVED_PER_SECOND - 60
    assert await observed(denied, None, 60) == 0
    assert await observed(denied, ANN, 60) == 60


async def test_the_calls_that_are_not_observed_are_counted_in_one_event_of_ten_seconds() -> None:
    now = [0.0]
    denied = DeniedCalls(lambda: now[0])
    with captured_warnings() as events:
        await observed(denied, None, OBSERVED_PER_SECOND + 50)
        now[0] = 9.0
        await observed(denied, None, OBSERVED_PER_SECOND + 50)
        now[0] = 10.5
        await observed(denied, None, 1)
    counts = [event["count"] for event in events if event["event"] == "denied_calls_unobserved"]
    assert counts == [1, 49 + 50]
