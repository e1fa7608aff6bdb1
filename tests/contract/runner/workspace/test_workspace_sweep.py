"""Files that a killed runner left on the disk are removed while another runner of the machine works."""

import fcntl
import os
from pathlib import Path

import pytest
from spawnmesh_runner.loop import workspace_sweep

from tests.support.model_router.answers import saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


async def test_a_runner_removes_what_others_left_again_and_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_sweep, "SWEEP_SECONDS", 0.05)
    used = tmp_path / "used"
    used.mkdir()
    held_fd = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(held_fd, fcntl.LOCK_EX)
        async with running_runner(mesh, keys, tmp_path):
            mesh.answers.append(saying("Done."))
            mesh.queue_run()
            await eventually(lambda: mesh.finalized)
            for _ in range(2):
                abandoned = tmp_path / "abandoned"
                abandoned.mkdir()
                (abandoned / "secret.txt").write_text("plaintext")
                await eventually(lambda abandoned=abandoned: not abandoned.exists())
    finally:
        os.close(held_fd)
    assert used.is_dir()
