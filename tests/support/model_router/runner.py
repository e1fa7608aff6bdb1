"""A real runner that executes one run through a real router. All other peers are scripted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_runner.app import open_service
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.process import Process, start_process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.model_router.fixtures import World, user
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.serving import served, shared_settings
from tests.support.waiting import eventually


def queue(
    mesh: ScriptedMesh, world: World, *, epoch: int = 1, task: str = "Note it.", thinking: int = 0
) -> None:
    """Return a run whose agent names two models of one provider and may write files."""
    mesh.store(entry_pb2.EntryBody(message=user(task)))
    mesh.queue_run(epoch=epoch, tools=("write_file", "read_file"))
    claimed = mesh.queue.get_nowait()
    claimed.models[:] = [world.ref("one"), world.ref("two")]
    claimed.agent.models[:] = claimed.models
    claimed.thinking = thinking_pb2.ThinkingLevel.ValueType(thinking)
    mesh.queue.put_nowait(claimed)


async def carry(
    mesh: ScriptedMesh,
    world: World,
    keys: Path,
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    may_fail: bool = False,
) -> None:
    """Execute the run with a real runner and a real router, until it is accepted or fails, if it
    may.
    """

    @asynccontextmanager
    async def open_peers(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
        server = build_server(process)
        mesh.add_to(server)
        yield server

    router = await world.router(config, tenant=TENANT)
    async with served("session", ProcessSettings(**shared_settings("session", keys)), open_peers) as target:
        settings = RunnerSettings(
            **shared_settings("runner", keys),
            session_target=target,
            transcript_target=target,
            attachment_blob_target=target,
            model_router_target=router.target,
            hook_target=target,
            workspace_root=folder / "work",
            claim_wait_seconds=0.2,
        )
        (folder / "work").mkdir()
        async with start_process("runner", settings) as process, open_service(process, settings):
            await eventually(lambda: mesh.finalized or mesh.failed)
    assert may_fail or mesh.failed is None, mesh.failed
