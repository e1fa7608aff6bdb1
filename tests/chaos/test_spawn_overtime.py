"""The replica is paused past the spawn's deadline, and undoes the spawn when it continues."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.chaos.failpoints import Fault
from tests.support.chaos.recovery_checks import RecoveryChecks
from tests.support.chaos.spawning import open_spawning
from tests.support.chaos.steps import SPAWNED, steps_of
from tests.support.chaos.victim import Victim, open_victim
from tests.support.session.harness import Mesh
from tests.support.waiting import eventually

DEADLINE_SECONDS = 1.5
HALF_DONE = [step for step in steps_of(SPAWNED) if step.endswith((": commit", ": answered"))]
ALSO_BY_OTHERS = [
    "Hooks.before_spawn: answered",
    "AttachmentSets.stage: answered",
    "Transcripts.append: answered",
]


@pytest.fixture(scope="module")
async def hasty(
    _served_mesh: Mesh,
    peers: dict[str, str],
    watchdog: Watchdog,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Victim]:
    """A replica whose spawns have little time."""
    folder, little = tmp_path_factory.mktemp("hasty"), str(DEADLINE_SECONDS)
    async with open_victim(
        folder, _served_mesh, peers, watchdog, postgres.superuser_dsn, SPAWN_DEADLINE_SECONDS=little
    ) as replica:
        yield replica


async def _database_time(recovery: RecoveryChecks) -> datetime:
    [row] = await recovery.rows("select clock_timestamp() as now")
    now: datetime = row["now"]
    return now


@pytest.mark.parametrize(
    ("step", "undone"),
    [(step, "by nobody") for step in HALF_DONE] + [(step, "by others") for step in ALSO_BY_OTHERS],
)
async def test_SpawnSession__stopped_until_its_time_is_over(
    mesh: Mesh, hasty: Victim, recovery: RecoveryChecks, step: str, undone: str
) -> None:
    spawning = await open_spawning(mesh, hasty, recovery)
    pid = await hasty.serving()
    with hasty.planned(step, Fault.PAUSE) as failpoints:
        call = asyncio.create_task(spawning.call_victim())
        await hasty.stopped(pid)
        end_time = await _database_time(recovery) + timedelta(seconds=DEADLINE_SECONDS)
        if undone == "by others":
            await spawning.sweep()

        async def is_over() -> bool:
            return await _database_time(recovery) > end_time

        await eventually(is_over)
        hasty.resume(pid)
        heard = await call
        reached = failpoints.steps()
    typed = (Reason.SPAWN_FAILED, Reason.DEPENDENCY_UNAVAILABLE)
    assert not isinstance(heard, MeshError) or heard.reason in typed
    await spawning.sweep()
    await spawning.check(heard, reached)
