"""An outage at a tool of the mesh delays the run; the model reads no error of it."""

from collections import deque
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_client.turn_messages import text_of
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runner.clients import retry

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SESSION = new_id(IdKind.SESSION)
TOOLS = ("transcript_describe", "transcript_search", "sessions_wait", "sessions_spawn", "write_file")
DESCRIBE = ("transcript_describe", f'{{"file_id": "file_{SESSION.partition("_")[2]}"}}', "DescribeFile")
WAIT = ("sessions_wait", f'{{"session_ids": ["{SESSION}"], "timeout_seconds": 0}}', "WaitSession")
SEARCH = ("transcript_search", '{"words": "invoice"}', "SearchEntries")
SPAWN = ("sessions_spawn", '{"task": "Read it."}', "SpawnSession")


def undone() -> MeshError:
    return MeshError(Reason.SPAWN_FAILED, "the spawn was undone", status=Status.UNAVAILABLE)


def away() -> MeshError:
    return unavailable("S3", retry_after_seconds=0.01)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runners give up after a tenth of a second."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.1)


@pytest.mark.parametrize(
    ("call", "error"),
    [(DESCRIBE, away()), (SEARCH, away()), (WAIT, away()), (SPAWN, away()), (SPAWN, undone())],
    ids=["describe", "search", "wait", "spawn", "undone spawn"],
)
async def test_ReleaseRun__an_outage_at_a_tool_delays_the_run_and_the_call_is_made_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, call: tuple[str, str, str], error: MeshError
) -> None:
    tool, arguments, rpc = call
    mesh.refusals[rpc] = deque([error] * 1000)
    mesh.answers.extend(
        [
            calling(("c1", tool, arguments), ("c2", "write_file", '{"path": "a", "content": "b"}')),
            saying("Done."),
        ]
    )
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.delays or mesh.finalized or mesh.failed)
        assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
        assert [delay.reason for delay in mesh.delays] == [reason_number(error.reason)]
        mesh.refusals.clear()
        mesh.queue_run(epoch=2, tools=TOOLS)
        await eventually(lambda: mesh.finalized or mesh.failed)
    results = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    assert [(result.tool_name, result.is_error) for result in results] == [
        (tool, False),
        ("write_file", False),
    ]
    assert (len(mesh.prompts), len(mesh.spawns), mesh.failed) == (2, int(rpc == "SpawnSession"), None)


@pytest.mark.parametrize("reason", [Reason.NOT_FOUND, Reason.DEADLINE_EXCEEDED])
async def test_a_refusal_of_the_mesh_and_a_call_that_takes_too_long_are_read_by_the_model(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, reason: Reason
) -> None:
    tool, arguments, rpc = DESCRIBE
    mesh.refusals[rpc] = deque([MeshError(reason, "ask for less")] * 1000)
    mesh.answers.extend([calling(("c1", tool, arguments)), saying("Done.")])
    mesh.queue_run(tools=TOOLS)
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.delays or mesh.finalized or mesh.failed)
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    assert text_of(result) == f"{reason.value}: ask for less"
    assert (result.is_error, mesh.delays, mesh.failed) == (True, [], None)
