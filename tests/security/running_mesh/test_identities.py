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
IDENTITIES = list(next(iter(MATRIX.values())))
FAULTS = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}


async def cell_of(running: RunningMesh, rpc: Served, token: str) -> str:
    """Return the cell that says the outcome; "yes" if the caller was not denied."""
    messages = () if rpc.method.client_streaming else (b"",)
    channel = running.channels[rpc.service]

    async def outcome() -> str:
        answer = await ask(channel, rpc.method, token, *messages)
        if answer.reason is Reason.RATE_LIMITED:
            return ""
        if answer.code in FAULTS or (answer.code != "OK" and answer.reason is None):
            return f"{answer.code} {answer.reason} {answer.text}"
        return "yes" if answer.reason is None else DENIALS.get((answer.code, answer.reason), "yes")

    return await eventually(outcome)


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_identity_is_answered_as_the_matrix_says(running: RunningMesh, identity: str) -> None:
    token = identity_token(running.stack.keys, identity)
    expected = {rpc.name: MATRIX[rpc.method.full_name][identity] for rpc in running.rpcs}
    cells = await asyncio.gather(*(cell_of(running, rpc, token) for rpc in running.rpcs))
    found = {rpc.name: cell for rpc, cell in zip(running.rpcs, cells, strict=True)}
    assert found == {name: "-" if cell == "no tenant" else cell for name, cell in expected.items()}
    assert len(found) > 100
