"""A stream of events ends with its token, once."""

import asyncio
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
HARNESS = Caller(
    CallerKind.RUN, "run_1", "acme", revocation_key="acme/run_1", further_keys=("/tok_1", "acme/tok_1")
)


@pytest.mark.parametrize("key", [HARNESS.revocation_key, *HARNESS.further_keys])
async def test_each_key_of_the_token_ends_the_stream_also_while_it_ends_by_another(key: str) -> None:
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

    step = authorized_calls(stream, ServedMethod("s", "m", POLICY), revoked)
    context: Any = None
    with pytest.raises(MeshError) as refused:
        await step(Call(context, caller=HARNESS))
    assert (refused.value.reason, ended) == (Reason.TOKEN_REVOKED, ["in order"])
