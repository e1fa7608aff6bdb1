"""A statement or a call of the replica that spawns fails, or its answer is lost."""

import pytest
from spawnmesh_core.errors import MeshError

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.spawning import EACH_STEP, TYPED, Spawning, open_spawning
from tests.support.chaos.steps import SPAWNED_BEFORE, steps_of
from tests.support.chaos.victim import Victim
from tests.support.session.harness import Mesh


@pytest.mark.parametrize(("file", "step"), EACH_STEP)
async def test_SpawnSession__failed(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, file: str, step: str
) -> None:
    """Then the step fails with all that follows, in another spawn by the same run."""
    failing = await open_spawning(mesh, victim, recovery, file)
    await _failed(failing, step, Fault.FAIL)
    await _failed(await failing.another(), step, Fault.CUT)


async def _failed(spawning: Spawning, step: str, fault: Fault) -> None:
    with spawning.victim.planned(step, fault) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert not isinstance(heard, MeshError) or heard.reason in TYPED
    await spawning.sweep()
    await spawning.check(heard, reached)


@pytest.mark.parametrize("step", steps_of(SPAWNED_BEFORE[1:]))
async def test_SpawnSession__repeat_failed(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, step: str
) -> None:
    spawning = await open_spawning(mesh, victim, recovery)
    await spawning.call_healthy()
    with victim.planned(step, Fault.FAIL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert isinstance(heard, MeshError)
    assert heard.reason in TYPED
    await spawning.check(heard, reached)
