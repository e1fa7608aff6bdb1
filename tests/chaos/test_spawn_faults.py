"""The replica that spawns is killed or paused at every step: the session is spawned once, or undone with nothing left."""

import asyncio

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.chaos.aftermath import Aftermath
from tests.chaos.failpoints import Fault
from tests.chaos.spawning import EACH_STEP, TYPED, open_spawning
from tests.chaos.victim import Victim
from tests.contract.session.harness import Mesh

AT_EACH_STEP = pytest.mark.parametrize(("file", "step"), EACH_STEP)


@AT_EACH_STEP
async def test_SpawnSession__killed(mesh: Mesh, victim: Victim, aftermath: Aftermath, file: str, step: str) -> None:
    spawning = await open_spawning(mesh, victim, aftermath, file)
    with victim.planned(step, Fault.KILL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert isinstance(heard, MeshError)
    assert (heard.reason, reached[-1]) == (Reason.DEPENDENCY_UNAVAILABLE, step)
    await spawning.sweep()
    await spawning.check(heard, reached)


@AT_EACH_STEP
async def test_SpawnSession__paused_while_others_undo_it(
    mesh: Mesh, victim: Victim, aftermath: Aftermath, file: str, step: str
) -> None:
    """What it does once it goes on is too late: it is refused, and what it may have made meanwhile goes, too."""
    spawning = await open_spawning(mesh, victim, aftermath, file)
    pid = await victim.serving()
    with victim.planned(step, Fault.PAUSE) as failpoints:
        call = asyncio.create_task(spawning.call_victim())
        await victim.stopped(pid)
        await spawning.sweep()
        await spawning.call_healthy()
        victim.resume(pid)
        heard = await call
        reached = failpoints.steps()
    assert not isinstance(heard, MeshError) or heard.reason in TYPED
    await spawning.sweep()
    await spawning.check(heard, reached)
