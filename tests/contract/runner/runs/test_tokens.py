"""A runner calls with the newest token that it has for the run."""

import asyncio
import time
from collections import deque
from pathlib import Path

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import saying
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

TOKEN_SECONDS = 4.0


@pytest.fixture
def mesh(mesh: ScriptedMesh) -> ScriptedMesh:
    """Return the mesh with a model that answers once the test lets it."""
    mesh.hold_model = asyncio.Event()
    mesh.answers.append(saying("Done."))
    return mesh


async def test_a_run_outlives_the_token_of_its_claim(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.token_seconds = TOKEN_SECONDS
    mesh.queue_run()
    mesh.token_seconds = 600.0  # Of the heartbeats' tokens.
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(mesh.model_called.is_set)
        over = time.monotonic() + TOKEN_SECONDS
        await eventually(lambda: time.monotonic() > over)
        assert not mesh.model_cancelled  # The stream began with a token that has expired meanwhile.
        assert mesh.hold_model is not None
        mesh.hold_model.set()
        await eventually(lambda: mesh.finalized)
    assert mesh.failed is None


async def test_a_run_with_an_expired_token_is_abandoned(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.queue_run()
    async with running_runner(mesh, keys, tmp_path, heartbeat_share=OFTEN):
        await eventually(mesh.model_called.is_set)  # A heartbeat can come before the call of the model.
        mesh.refusals["HeartbeatRun"] = deque([MeshError(Reason.TOKEN_EXPIRED, "the token's time is over")])
        await eventually(lambda: mesh.model_cancelled)
        await eventually(lambda: mesh.released_claims)
    assert (mesh.failed, mesh.released, mesh.finalized) == (None, [], None)
