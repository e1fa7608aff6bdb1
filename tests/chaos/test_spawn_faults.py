"""The replica that spawns is killed or paused in every state: spawned once, or undone."""

import asyncio

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.spawning import BY_A_CLIENT, EACH_STATE, TYPED, Spawning, open_spawning
from tests.support.chaos.victim import Victim
from tests.support.session.harness import Mesh

IN_EACH_STATE = pytest.mark.parametrize(("file", "step"), EACH_STATE)


@IN_EACH_STATE
async def test_SpawnSession__killed(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, file: str, step: str
) -> None:
    await _killed(await open_spawning(mesh, victim, recovery, file), step)


@pytest.mark.parametrize("step", BY_A_CLIENT)
async def test_SpawnSession__of_a_client_killed(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, step: str
) -> None:
    await _killed(await open_spawning(mesh, victim, recovery, by_client=True), step)


@IN_EACH_STATE
async def test_SpawnSession__paused_while_others_undo_it(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, file: str, step: str
) -> None:
    """After the pause its work is refused, and what it created meanwhile is removed."""
    await _paused(await open_spawning(mesh, victim, recovery, file), step)


@pytest.mark.parametrize("step", BY_A_CLIENT)
async def test_SpawnSession__of_a_client_paused_while_others_undo_it(
    mesh: Mesh, victim: Victim, recovery: RecoveryChecks, step: str
) -> None:
    await _paused(await open_spawning(mesh, victim, recovery, by_client=True), step)


async def _killed(spawning: Spawning, step: str) -> None:
    with spawning.victim.planned(step, Fault.KILL) as failpoints:
        heard = await spawning.call_victim()
        reached = failpoints.steps()
    assert isinstance(heard, MeshError)
    assert (heard.reason, reached[-1]) == (Reason.DEPENDENCY_UNAVAILABLE, step)
    await spawning.sweep()
    await spawning.check(heard, reached)


async def _paused(spawning: Spawning, step: str) -> None:
    victim = spawning.victim
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
