"""Runs of scripted models that publish files."""

from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh_client.turn_messages import text_of
from spawnmesh_runner.domain.request_ids import call_request_id

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

RESULT = message_pb2.ROLE_TOOL_RESULT
TOOLS = ("write_file", "publish_files", "fetch_files")
WRITE = ("c1", "write_file", '{"path": "a.md", "content": "report"}')
PUBLISH = ("c2", "publish_files", '{"paths": ["a.md"]}')


async def results_of_run(mesh: ScriptedMesh, keys: Path, folder: Path, *, epoch: int = 2) -> list[str]:
    """Return the results that the models of the run have read at its end."""
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=epoch, tools=TOOLS)
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed or mesh.delays)
    assert (mesh.failed, mesh.delays) == (None, [])
    return list(map(text_of, mesh.messages(RESULT)))


def begun(mesh: ScriptedMesh, paths: str = '["a.md"]') -> str:
    """Store a call that a runner made before it was lost. Return its request_id."""
    entry_id = mesh.write(calling(("c2", "publish_files", f'{{"paths": {paths}}}')))
    return call_request_id(entry_id, 0)
