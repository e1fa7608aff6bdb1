"""A run token is good for minutes and renewed by each heartbeat."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.tokens import TokenVerifier

from tests.support.session.harness import Mesh, OpenMesh
from tests.support.waiting import eventually

MINUTES = 60.0
SLACK_SECONDS = 30.0  # For what lies between the service's look at the clock and ours.


@pytest.fixture
def left(keys: Path) -> Callable[[str], float]:
    """Return the remaining seconds of a token."""
    verifier = TokenVerifier(JwksFile(keys / "jwks.json"))
    return lambda token: verifier.verify(token).expire_timestamp - time.time()


async def beat(mesh: Mesh, held: run_pb.ClaimedRun, token: str = "") -> str:
    """The token that a heartbeat brings."""
    with use_token(token or held.run_token):
        request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
        answer: run_pb.HeartbeatRunResponse = await mesh.peer.unary(
            mesh.runs.HeartbeatRun, request, timeout_seconds=60
        )
    return answer.run_token


async def test_ClaimRuns__token_names_the_agent_of_the_run_and_heartbeats_keep_it(
    open_mesh: OpenMesh, keys: Path
) -> None:
    verifier = TokenVerifier(JwksFile(keys / "jwks.json"))
    async with open_mesh() as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        held = await mesh.claim(session.session_id)
        assert held.agent.agent_id
        for token in (held.run_token, await beat(mesh, held)):
            assert verifier.verify(token).agent_id == held.agent.agent_id


@pytest.mark.parametrize(("lease_seconds", "minutes"), [(10.0, 5.0), (120.0, 8.0)])
async def test_a_token_is_good_for_five_minutes_and_for_some_leases(
    open_mesh: OpenMesh, left: Callable[[str], float], lease_seconds: float, minutes: float
) -> None:
    async with open_mesh(lease_ttl_seconds=lease_seconds) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn(run_timeout=Duration(seconds=86_400))).session_id)
        for token in (held.run_token, await beat(mesh, held)):
            assert minutes * MINUTES - SLACK_SECONDS < left(token) <= minutes * MINUTES


async def test_a_token_is_good_for_five_minutes_past_the_deadline_at_most(
    open_mesh: OpenMesh, left: Callable[[str], float]
) -> None:
    async with open_mesh(lease_ttl_seconds=3600.0) as mesh:
        await mesh.create_tenant()
        held = await mesh.claim((await mesh.spawn(run_timeout=Duration(seconds=60))).session_id)
        for token in (held.run_token, await beat(mesh, held)):
            assert 6 * MINUTES - SLACK_SECONDS < left(token) <= 6 * MINUTES


async def test_HeartbeatRun__each_brings_a_token_that_is_good_for_longer(
    mesh: Mesh, left: Callable[[str], float]
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    tokens = [held.run_token]

    async def is_good_for_longer() -> bool:
        tokens.append(await beat(mesh, held, tokens[-1]))
        return left(tokens[-1]) > left(tokens[0])

    await eventually(is_good_for_longer)
    for token in (tokens[0], tokens[-1]):  # A call may have begun with the one before.
        with use_token(token):
            await mesh.peer.unary(mesh.runs.ListInbox, run_pb.ListInboxRequest(), timeout_seconds=60)


@pytest.mark.parametrize("end", ["killed", "deleted"])
async def test_a_token_of_a_run_that_was_taken_away_ends_in_minutes(mesh: Mesh, keys: Path, end: str) -> None:
    session = await mesh.spawn(run_timeout=Duration(seconds=86_400))
    held = await mesh.claim(session.session_id)
    token = await beat(mesh, held)
    if end == "killed":
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    else:
        await mesh.client(mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session.session_id))
    with pytest.raises(MeshError) as caught:
        await beat(mesh, held, token)
    assert caught.value.reason is Reason.RUN_LEASE_LOST
    in_five_minutes = TokenVerifier(
        JwksFile(keys / "jwks.json"), clock=lambda: utc_now() + timedelta(minutes=5)
    )
    for one in (held.run_token, token):
        with pytest.raises(MeshError) as caught:
            in_five_minutes.verify(one)
        assert caught.value.reason is Reason.TOKEN_EXPIRED
