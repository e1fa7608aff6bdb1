"""Each service of a running mesh answers each identity as the matrix in the page says, for every RPC.

The calls send an empty request, for a tenant that does not exist.
"""

import asyncio

import pytest
from spawnmesh_core.reasons import Reason

from tests.support.security.call_matrix import DENIALS, identity_token, read_matrix
from tests.support.security.every_rpc import RunningMesh, Served, ask
from tests.support.waiting import eventually

MATRIX = read_matrix()
IDENTITIES = {name: name for name in next(iter(MATRIX.values()))} | {
    "harness that claims": "runner",
    "harness with a run": "run",
}
"""The identities of the matrix, and the harnesses, each of which is answered as another one."""

FAULTS = {"UNKNOWN", "INTERNAL", "UNIMPLEMENTED"}
BUSY = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
"""The codes of calls that are repeated."""


async def cell_of(running: RunningMesh, rpc: Served, token: str, *, may_be_silent: bool) -> str:
    """Return the cell that says the outcome; "yes" if the caller was not denied.

    A stream of answers that stays silent is "yes" if it `may_be_silent`. A denial ends it.
    """
    messages = () if rpc.method.client_streaming else (b"",)
    channel = running.channels[rpc.service]

    async def outcome() -> str:
        answer = await ask(channel, rpc.method, token, *messages, may_be_silent=may_be_silent)
        if answer.reason is Reason.RATE_LIMITED or answer.code in BUSY:
            return ""
        if answer.code in FAULTS or (answer.code != "OK" and answer.reason is None):
            return f"{answer.code} {answer.reason} {answer.text}"
        if answer.reason is None:
            return "yes"
        is_denial = answer.code in ("UNAUTHENTICATED", "PERMISSION_DENIED")
        other = f"{answer.code} {answer.reason}" if is_denial else "yes"
        return DENIALS.get((answer.code, answer.reason), other)

    return await eventually(outcome)


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_identity_is_answered_as_the_matrix_says(running: RunningMesh, identity: str) -> None:
    token = identity_token(running.stack.keys, identity)
    column = IDENTITIES[identity]
    expected = {rpc.name: MATRIX[rpc.method.full_name][column] for rpc in running.rpcs}
    calls = [cell_of(running, rpc, token, may_be_silent=expected[rpc.name] == "yes") for rpc in running.rpcs]
    cells = await asyncio.gather(*calls)
    found = {rpc.name: cell for rpc, cell in zip(running.rpcs, cells, strict=True)}
    assert found == {name: "-" if cell == "no tenant" else cell for name, cell in expected.items()}
    assert len(found) > 100
