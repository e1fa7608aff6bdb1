"""The replica that spawns is killed, paused or failed at every step: the session is spawned once, or undone with nothing left."""

import asyncio

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.chaos.aftermath import Aftermath
from tests.chaos.failpoints import Fault
from tests.chaos.spawning import Spawning, open_spawning
from tests.chaos.steps import SPAWNED, SPAWNED_BEFORE, UNDONE, steps_of
from tests.chaos.victim import Victim
from tests.contract.session.harness import Mesh

FILES = {"SPAWNED": "a.txt", "UNDONE": "../evil", "SPAWNED_BEFORE": "a.txt"}
EACH_STEP = [("SPAWNED", step) for step in steps_of(SPAWNED)] + [("UNDONE", step) for step in steps_of(UNDONE[3:])]
EACH_READ = [("SPAWNED_BEFORE", step) for step in steps_of(SPAWNED_BEFORE[1:])]
AT_EACH_STEP = pytest.mark.parametrize(("path", "step"), EACH_STEP)
TYPED = {Reason.DEPENDENCY_UNAVAILABLE, Reason.SPAWN_FAILED, Reason.ATTACHMENTS_INVALID_NAME}


async def begun(mesh: Mesh, victim: Victim, aftermath: Aftermath, path: str) -> Spawning:
    spawning = await open_spawning(mesh, victim, aftermath, FILES[path])
    if path == "SPAWNED_BEFORE":
        await spawning.call_healthy()
    return spawning


@AT_EACH_STEP
async def test_SpawnSession__killed(mesh: Mesh, victim: Victim, aftermath: Aftermath, path: str, step: str) -> None:
    spawning = await begun(mesh, victim, aftermath, path)
    with victim.planned(step, Fault.KILL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert isinstance(heard, MeshError)
    assert (heard.reason, reached[-1]) == (Reason.DEPENDENCY_UNAVAILABLE, step)
    await spawning.sweep()
    await spawning.check(heard, reached)


@AT_EACH_STEP
async def test_SpawnSession__paused_while_others_undo_it(
    mesh: Mesh, victim: Victim, aftermath: Aftermath, path: str, step: str
) -> None:
    """What it does once it goes on is too late: it is refused, and what it may have made meanwhile goes, too."""
    spawning = await begun(mesh, victim, aftermath, path)
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


@pytest.mark.parametrize(
    ("path", "step", "fault"),
    [(*at, fault) for at in EACH_STEP for fault in (Fault.FAIL, Fault.CUT)] + [(*at, Fault.FAIL) for at in EACH_READ],
)
async def test_SpawnSession__failed(
    mesh: Mesh, victim: Victim, aftermath: Aftermath, path: str, step: str, fault: Fault
) -> None:
    """What fails is a statement or a call, before its effect or, where it was done, in its answer."""
    spawning = await begun(mesh, victim, aftermath, path)
    with victim.planned(step, fault) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert not isinstance(heard, MeshError) or heard.reason in TYPED
    await spawning.sweep()
    await spawning.check(heard, reached)
