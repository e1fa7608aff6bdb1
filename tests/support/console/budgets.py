"""Sessions whose runs wait for their budget."""

from spawnmesh_client import Budget, RunState
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session

from tests.support.waiting import eventually


async def waiting_session(mesh: Mesh, *, budget: Budget | None = None, label: str = "") -> Session:
    """Return a session whose second run waits for its budget: of one model call, if none is given."""
    chosen = budget or Budget(calls=1)
    session = await mesh.spawn("Say hello.", mode="SESSION", budget=chosen, label=label)
    await session.result(120)
    await session.send("And now say goodbye.")

    async def waits() -> bool:
        run = (await session.refresh()).latest_run
        return run is not None and run.state is RunState.WAITING_BUDGET

    await eventually(waits, within_seconds=120)
    return session
