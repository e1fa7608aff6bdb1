"""Each part of a mesh is killed and started again: nothing acknowledged is lost, and sessions go on.

`pytest -s` prints how long that took, for the list of disasters in docs/howto/backup-and-restore.md.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_devstack.members import RUNNER, SERVICES
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.waiting import eventually

POSTGRESQL, S3 = "PostgreSQL", "S3"
PARTS = (POSTGRESQL, S3, *SERVICES, RUNNER)
TENANT = "acme"
FILE = b"alpha\n"
RUNNING, SUCCEEDED = session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_SUCCEEDED


async def kill(stack: Stack, part: str) -> None:
    """Kill the processes of the part, as a power cut does."""
    if part == POSTGRESQL:
        await stack.postgres.process.kill()
    elif part == S3:
        for process in stack.s3.processes:
            await process.kill()
    else:
        await stack.processes[part].kill()


async def start(stack: Stack, part: str) -> None:
    storage = {POSTGRESQL: stack.postgres, S3: stack.s3}
    if part in storage:
        await stack.restart_storage(storage[part])
    else:
        await stack.restart(part)


async def spawn(mesh: WireMesh) -> session_pb2.Session:
    return await mesh.spawn("What is in the file?", attachments=[Attachment("a.txt", FILE)])


async def state_of(mesh: WireMesh, session_id: str) -> int:
    """Return the state of the newest run; UNSPECIFIED while the mesh does not answer."""
    try:
        return (await mesh.session(session_id)).latest_run.state
    except MeshError:
        return session_pb2.RUN_STATE_UNSPECIFIED


async def has_state(mesh: WireMesh, session_id: str, state: int) -> bool:
    return await state_of(mesh, session_id) == state


@asynccontextmanager
async def spawning(mesh: WireMesh) -> AsyncIterator[list[str]]:
    """Spawn sessions for the block. The list has those that were acknowledged."""
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            try:
                acknowledged.append((await spawn(mesh)).session_id)
            except MeshError:
                await asyncio.sleep(0.1)
                continue
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        yield acknowledged
        stop.set()


async def seconds_until(condition: Callable[[], Awaitable[bool]], since: float) -> float:
    await eventually(condition, within_seconds=120.0)
    return monotonic() - since


async def recover(stack: Stack, mesh: WireMesh, part: str) -> list[str]:
    """Kill the part while a run is in flight, and start it at once. Return what was acknowledged."""
    model = stack.processes["scripted-model"]
    model.pause()
    in_flight = (await spawn(mesh)).session_id
    await eventually(lambda: has_state(mesh, in_flight, RUNNING))
    async with spawning(mesh) as acknowledged:
        await eventually(lambda: len(acknowledged) > 2)
        killed, before = monotonic(), len(acknowledged)
        await kill(stack, part)
        model.resume()
        await start(stack, part)
        started = monotonic() - killed

        async def new_one_ends() -> bool:
            return any([await has_state(mesh, one, SUCCEEDED) for one in acknowledged[before:]])

        served = await seconds_until(new_one_ends, killed)
        went_on = await seconds_until(lambda: has_state(mesh, in_flight, SUCCEEDED), killed)
    print(
        f"{part}: started {started:.1f} s after the kill, a new session had its answer after {served:.1f} s, "
        f"and the run in flight after {went_on:.1f} s"
    )
    return [in_flight, *acknowledged]


@pytest.mark.timeout(600)
async def test_parts_that_are_killed_come_back_and_lose_nothing_acknowledged() -> None:
    with tempfile.TemporaryDirectory(prefix="spawnmesh-recovery-") as folder:
        async with open_stack(Path(folder), lambda _line: None) as stack:
            async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
                await operator.create_tenant(TENANT)
            targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
            async with connect_wire(**targets, token=stack.client_token(TENANT)) as mesh:
                for part in PARTS:
                    for session_id in await recover(stack, mesh, part):
                        await eventually(
                            lambda one=session_id: has_state(mesh, one, SUCCEEDED), within_seconds=60.0
                        )
