"""A run whose context refers to long outputs can read them, within its budget."""

from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.transcript.v1 import context_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually


@pytest.mark.parametrize("has_references", [True, False])
async def test_transcript_describe_is_offered_only_with_references_and_uses_budget(
    keys: Path, tmp_path: Path, has_references: bool
) -> None:
    mesh = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    mesh.write(text_message(message_pb2.ROLE_USER, "Go on."), epoch=0)
    mesh.stubbed = [context_pb2.StubbedResult(entry_id="e", seq=1)] if has_references else []
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("Done.")])
    mesh.queue_run(tools=("list_files",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    offered = [[tool.name for tool in prompt.tools] for prompt in mesh.prompts]
    assert offered == [["list_files", *["transcript_describe"] * has_references]] * 2
    counted = [
        any("transcript_describe " in text for text in asked.accompanying_texts) for asked in mesh.assembled
    ]
    assert counted == ([False, True, True] if has_references else [False, False])
