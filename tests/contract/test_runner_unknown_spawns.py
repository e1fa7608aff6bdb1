"""What a runner tells the model of a spawn that it finds begun, with files that only the runner before it had."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh_runner.context import text_message
from spawnmesh_runner.domain import call_request_id
from spawnmesh_runtime.tokens import TokenMinter

from tests.contract.router_answers import calling, saying
from tests.contract.runner_fixtures import ScriptedMesh, eventually, running_runner
from tests.contract.runner_sessions import child_of

USER, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_TOOL_RESULT
REDACTED = {"$redacted": "attachment", "sha256": hashlib.sha256(b"abc").hexdigest(), "bytes": 3}


@pytest.fixture
def mesh(keys: Path) -> ScriptedMesh:
    """A mesh whose one session has a task and a file."""
    scripted = ScriptedMesh(TokenMinter("session", keys / "session.pem"))
    scripted.files = {"given.txt": b"given"}
    scripted.write(text_message(USER, "Do it."), epoch=0)
    return scripted


def begun(mesh: ScriptedMesh, task: str = "Read it.", *, files: list[dict[str, Any]]) -> session_pb.SpawnSessionRequest:
    """A call that a runner had stored before it was lost, and what it asked for."""
    arguments = json.dumps({"task": task, "attachments": files})
    entry_id = mesh.write(calling(("c1", "sessions_spawn", arguments)))
    return session_pb.SpawnSessionRequest(request_id=call_request_id(entry_id, 0), task=task)


async def told(mesh: ScriptedMesh, keys: Path, folder: Path) -> message_pb2.Message:
    """What the next runner says of the call."""
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=2, tools=("sessions_spawn",))
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    [result] = mesh.messages(RESULT)
    assert result.tool_call_id == "c1"
    return result


def text(result: message_pb2.Message) -> str:
    return result.content[0].text.text


@pytest.mark.parametrize(
    "files",
    [
        [{"name": "a.txt", "content": REDACTED}],
        [{"path": "notes.md"}],
        [{"name": "a", "content": REDACTED}, {"path": "b"}],
    ],
    ids=["content", "a file of the workspace", "both"],
)
async def test_SpawnSession__a_child_that_may_have_been_spawned_is_not_told_as_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    request = begun(mesh, files=files)
    mesh.spawns[request.request_id] = request
    mesh.spawns["other"] = session_pb.SpawnSessionRequest(request_id="other", task="Something else.")
    result = await told(mesh, keys, tmp_path)
    assert result.is_error
    assert text(result).startswith("OUTCOME_UNKNOWN: ")
    assert "its result comes to you as a message" in text(result)
    assert f"{child_of(request).session_id} (ACTIVE)" in text(result)
    assert text(result).count("ses_") == 1
    assert mesh.spawn_traces == []


async def test_SpawnSession__of_a_child_that_nobody_sees_none_is_named(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """Nor is it said that there is none: its task may be stored otherwise than it was given."""
    begun(mesh, files=[{"name": "a.txt", "content": REDACTED}])
    result = await told(mesh, keys, tmp_path)
    assert text(result).startswith("OUTCOME_UNKNOWN: ")
    assert "Children" not in text(result)
    assert mesh.spawns == {}


async def test_SpawnSession__a_call_with_a_masked_secret_is_not_made_with_the_mask(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """It would be another call under the same request_id, or a child that is given no secret."""
    begun(mesh, "Log in with [$redacted:password].", files=[])
    assert text(await told(mesh, keys, tmp_path)).startswith("OUTCOME_UNKNOWN: ")
    assert mesh.spawn_traces == []


async def test_SpawnSession__a_call_whose_files_are_all_there_is_made_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    begun(mesh, files=[{"path": f".spawnmesh/attachments/{mesh.set_id}/given.txt"}])
    result = await told(mesh, keys, tmp_path)
    assert not result.is_error
    [request] = mesh.spawns.values()
    assert json.loads(text(result))["session_id"] == child_of(request).session_id


@pytest.mark.parametrize(
    "files", [[{"content": REDACTED, "path": "b"}], [{"name": "a", "content": REDACTED}, {}]], ids=["two", "none"]
)
async def test_SpawnSession__a_call_that_no_runner_can_have_made_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    begun(mesh, files=files)
    assert text(await told(mesh, keys, tmp_path)).startswith("INVALID_ARGUMENTS: ")


async def test_SpawnSession__a_call_that_is_nested_beyond_reason_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """As it comes from the router: a text, since it is no JSON that can be read."""
    mesh.write(calling(("c1", "sessions_spawn", json.dumps("[" * 100_000 + "]" * 100_000))))
    assert text(await told(mesh, keys, tmp_path)).startswith("INVALID_ARGUMENTS: ")
