"""A runner calls in the name of a run with the newest token that it has for it."""

import asyncio
import time
from collections import deque
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.context import text_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.contract.router_answers import saying
from tests.contract.runner_fixtures import ScriptedMesh, eventually, running_runner

TOKEN_SECONDS, LEASE_SECONDS = 2.0, 0.9


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """A mesh whose one session has a task in its transcript, and asks a model that takes its time."""
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    scripted.hold_model = asyncio.Event()
    scripted.answers.append(saying("Done."))
    return scripted


async def test_a_run_goes_on_past_the_end_of_the_token_it_was_claimed_with(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.token_seconds = TOKEN_SECONDS
    mesh.queue_run(lease_seconds=LEASE_SECONDS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(mesh.model_called.is_set)
        over = time.monotonic() + TOKEN_SECONDS + LEASE_SECONDS
        await eventually(lambda: time.monotonic() > over)
        assert not mesh.model_cancelled  # Its stream began with a token whose time is over.
        assert mesh.hold_model is not None
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
        await eventually(lambda: mesh.released_claims)
    assert mesh.failed is None


async def test_a_run_whose_token_has_ended_is_left_alone(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.refusals["HeartbeatRun"] = deque([MeshError(Reason.TOKEN_EXPIRED, "the token's time is over")])
    mesh.queue_run(lease_seconds=LEASE_SECONDS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.model_cancelled)
        await eventually(lambda: mesh.released_claims)
    assert (mesh.failed, mesh.released, mesh.finalized) == (None, [], None)
