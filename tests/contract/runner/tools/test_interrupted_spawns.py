"""The outcome of a spawn that an earlier runner began with files that only that runner had."""

import hashlib
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients import retry
from spawnmesh_runner.domain.request_ids import call_request_id
from spawnmesh_runner.tools.calling import spawn_outcome

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.runner.sessions import child_of
from tests.support.waiting import eventually

USER, RESULT = message_pb2.ROLE_USER, message_pb2.ROLE_TOOL_RESULT
REDACTED = {"$redacted": "attachment", "sha256": hashlib.sha256(b"abc").hexdigest(), "bytes": 3}


@pytest.fixture
def mesh(mesh: ScriptedMesh) -> ScriptedMesh:
    """Return the mesh with two attached files, one of them empty."""
    mesh.files = {"given.txt": b"given", "__init__.py": b""}
    return mesh


def begun(
    mesh: ScriptedMesh, task: str = "Read it.", *, files: list[dict[str, Any]]
) -> session_pb.SpawnSessionRequest:
    """Store a call that a runner made before it was lost. Return the request that it sent."""
    arguments = json.dumps({"task": task, "attachments": files})
    entry_id = mesh.write(calling(("c1", "sessions_spawn", arguments)))
    return session_pb.SpawnSessionRequest(request_id=call_request_id(entry_id, 0), task=task)


async def repeated_result(mesh: ScriptedMesh, keys: Path, folder: Path) -> message_pb2.Message:
    """Return the next runner's result of the call."""
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
async def test_ListSessions__the_child_of_the_call_is_its_result(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    request = begun(mesh, files=files)
    mesh.spawns[request.request_id] = request
    mesh.spawns["other"] = session_pb.SpawnSessionRequest(request_id="other", task="Something else.")
    result = await repeated_result(mesh, keys, tmp_path)
    assert not result.is_error
    assert json.loads(text(result))["session_id"] == child_of(request).session_id
    assert mesh.spawn_traces == []


async def test_ListSessions__a_call_without_a_child_must_be_made_again(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """Another child with the same task is not meant."""
    begun(mesh, files=[{"name": "a.txt", "content": REDACTED}])
    mesh.spawns["other"] = session_pb.SpawnSessionRequest(request_id="other", task="Read it.")
    result = await repeated_result(mesh, keys, tmp_path)
    assert result.is_error
    assert text(result).startswith("NOT_SPAWNED: ")
    assert "make the call again, with the files" in text(result)
    assert "ses_" not in text(result)
    assert set(mesh.spawns) == {"other"}


async def test_SpawnSession__a_call_with_a_masked_secret_is_not_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """It would be another call under the same request_id, or a child without its secret."""
    begun(mesh, "Log in with [$redacted:password].", files=[])
    assert text(await repeated_result(mesh, keys, tmp_path)).startswith("NOT_SPAWNED: ")
    assert mesh.spawn_traces == []


async def test_ListSessions__the_run_waits_while_the_session_service_is_away(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner after this one learns of the child."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.001)
    request = begun(mesh, files=[{"name": "a.txt", "content": REDACTED}])
    mesh.spawns[request.request_id] = request
    away = MeshError(Reason.DEPENDENCY_UNAVAILABLE, "no answer", retry_after_seconds=0.01)
    mesh.refusals["ListSessions"] = deque([away] * 3)
    mesh.queue_run(epoch=2, tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path / "away"):
        await eventually(lambda: mesh.delays or mesh.finalized or mesh.failed)
    assert (mesh.failed, mesh.finalized, len(mesh.delays)) == (None, None, 1)
    assert mesh.messages(RESULT) == []
    mesh.refusals.clear()
    result = await repeated_result(mesh, keys, tmp_path)
    assert json.loads(text(result))["session_id"] == child_of(request).session_id


async def test_ListSessions__a_refusal_to_say_leaves_the_outcome_unknown(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    begun(mesh, files=[{"name": "a.txt", "content": REDACTED}])
    mesh.refusals["ListSessions"] = deque([MeshError(Reason.INTERNAL, "a defect")])
    result = text(await repeated_result(mesh, keys, tmp_path))
    assert result.startswith("OUTCOME_UNKNOWN: the session service refused to say (INTERNAL)")
    assert "its result comes to you as a message" in result


async def test_ListSessions__the_run_waits_for_a_child_that_is_being_spawned(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn_outcome, "SPAWN_SECONDS", 0.0)
    request = begun(mesh, files=[{"name": "a.txt", "content": REDACTED}])
    mesh.spawns[request.request_id] = request
    mesh.provisioning_request_ids.add(request.request_id)
    mesh.queue_run(epoch=2, tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path / "early"):
        await eventually(lambda: mesh.delays or mesh.finalized or mesh.failed)
    assert (mesh.failed, mesh.finalized, len(mesh.delays)) == (None, None, 1)
    mesh.provisioning_request_ids.clear()
    result = await repeated_result(mesh, keys, tmp_path)
    assert json.loads(text(result))["session_id"] == child_of(request).session_id


async def test_SpawnSession__a_call_with_all_its_files_is_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    folder = f".spawnmesh/attachments/{mesh.set_id}"
    begun(mesh, files=[{"path": f"{folder}/given.txt"}, {"path": f"{folder}/__init__.py"}])
    result = await repeated_result(mesh, keys, tmp_path)
    assert not result.is_error
    [request] = mesh.spawns.values()
    given, empty = request.attachments
    assert given.data == b"given"
    assert (empty.name, empty.data, empty.HasField("data")) == ("__init__.py", b"", True)
    assert json.loads(text(result))["session_id"] == child_of(request).session_id


@pytest.mark.parametrize(
    "files",
    [[{"content": REDACTED, "path": "b"}], [{"name": "a", "content": REDACTED}, {}]],
    ids=["two", "none"],
)
async def test_SpawnSession__an_invalid_call_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    begun(mesh, files=files)
    assert text(await repeated_result(mesh, keys, tmp_path)).startswith("INVALID_ARGUMENTS: ")


async def test_SpawnSession__a_call_nested_too_deep_is_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """The router delivers it as a text, since it is not JSON that can be parsed."""
    mesh.write(calling(("c1", "sessions_spawn", json.dumps("[" * 100_000 + "]" * 100_000))))
    assert text(await repeated_result(mesh, keys, tmp_path)).startswith("INVALID_ARGUMENTS: ")
