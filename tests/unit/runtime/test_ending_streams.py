"""A stream ends when its token is revoked, once; a stream of events also when the token expires."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.call import Call, ServedMethod
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.interceptors.auth import authorized_calls
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.revoked_tokens import RevokedTokens

POLICY = CallPolicy(frozenset(CallerKind), frozenset(), ends_with_token=True)
OF_BYTES = CallPolicy(frozenset(CallerKind), frozenset())
HARNESS = Caller(
    CallerKind.RUN, "run_1", "acme", revocation_key="acme/run_1", further_keys=("/tok_1", "acme/tok_1")
)


@pytest.mark.parametrize("policy", [POLICY, OF_BYTES], ids=["of events", "of bytes"])
@pytest.mark.parametrize("key", [HARNESS.revocation_key, *HARNESS.further_keys])
async def test_each_key_of_the_token_ends_the_stream_also_while_it_ends_by_another(
    key: str, policy: CallPolicy
) -> None:
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    soon = utc_now().timestamp() + 3600
    ended: list[str] = []

    async def stream(_call: Call) -> None:
        revoked.add(key, soon)
        try:
            await asyncio.Event().wait()
        finally:
            for other in (HARNESS.revocation_key, *HARNESS.further_keys):
                revoked.add(other, soon)
            ended.append("in order")

    step = authorized_calls(stream, ServedMethod("s", "m", policy), revoked, is_stream=True)
    context: Any = None
    with pytest.raises(MeshError) as refused:
        await step(Call(context, caller=HARNESS))
    assert (refused.value.reason, ended) == (Reason.TOKEN_REVOKED, ["in order"])


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_call_that_does_not_wait_for_events_outlasts_the_expiry_of_its_token(is_stream: bool) -> None:
    revoked = RevokedTokens(max_count=10, max_run_count=10)
    caller = replace(HARNESS, expire_timestamp=utc_now().timestamp() - 1)
    served = ServedMethod("s", "m", OF_BYTES)

    async def work(_call: Call) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    context: Any = None
    step = authorized_calls(work, served, revoked, is_stream=is_stream)
    assert await step(Call(context, caller=caller)) == "done"


@pytest.mark.parametrize(
    ("policy", "is_stream"),
    [(OF_BYTES, False), (replace(OF_BYTES, checks_run=True), True)],
    ids=["short", "of a run"],
)
async def test_a_short_call_and_one_that_looks_at_its_run_itself_outlast_the_end_of_the_run(
    policy: CallPolicy, is_stream: bool
) -> None:
    revoked = RevokedTokens(max_count=10, max_run_count=10)

    async def work(_call: Call) -> str:
        revoked.add(HARNESS.revocation_key, utc_now().timestamp() + 3600)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    context: Any = None
    step = authorized_calls(work, ServedMethod("s", "m", policy), revoked, is_stream=is_stream)
    assert await step(Call(context, caller=HARNESS)) == "done"
