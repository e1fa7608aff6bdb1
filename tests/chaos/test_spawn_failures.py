"""A statement or a call of the replica that spawns fails, before its effect or, where it was done, in its answer."""

import pytest
from spawnmesh_core.errors import MeshError

from tests.chaos.aftermath import Aftermath
from tests.chaos.failpoints import Fault
from tests.chaos.spawning import EACH_STEP, TYPED, open_spawning
from tests.chaos.steps import SPAWNED_BEFORE, steps_of
from tests.chaos.victim import Victim
from tests.contract.session.harness import Mesh


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.CUT])
@pytest.mark.parametrize(("file", "step"), EACH_STEP)
async def test_SpawnSession__failed(
    mesh: Mesh, victim: Victim, aftermath: Aftermath, file: str, step: str, fault: Fault
) -> None:
    spawning = await open_spawning(mesh, victim, aftermath, file)
    with victim.planned(step, fault) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert not isinstance(heard, MeshError) or heard.reason in TYPED
    await spawning.sweep()
    await spawning.check(heard, reached)


@pytest.mark.parametrize("step", steps_of(SPAWNED_BEFORE[1:]))
async def test_SpawnSession__repeat_failed(mesh: Mesh, victim: Victim, aftermath: Aftermath, step: str) -> None:
    spawning = await open_spawning(mesh, victim, aftermath)
    await spawning.call_healthy()
    with victim.planned(step, Fault.FAIL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert isinstance(heard, MeshError)
    assert heard.reason in TYPED
    await spawning.check(heard, reached)
