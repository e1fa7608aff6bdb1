"""A spawn that an outage undid is repeated by the tool. If it hands over files and the outage lasts,
the model hears of it.
"""

from collections import deque
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, transient_fact
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runner.clients import retry
from spawnmesh_runner.tools import sessions_spawn

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

SPAWN = ("c1", "sessions_spawn", '{"task": "Read it."}')
WITH_FILE = ("c1", "sessions_spawn", '{"task": "Read it.", "attachments": [{"name": "a", "content": "b"}]}')


def undone(status: Status, count: int) -> deque[MeshError]:
    """Return so many refusals of spawns that were undone."""
    return deque(
        MeshError(
            Reason.SPAWN_FAILED,
            "the spawn was undone",
            status=status,
            retry_after_seconds=0.01,
            facts={"cause": "DEPENDENCY_UNAVAILABLE"},
        )
        for _ in range(count)
    )


async def result_of(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, spawn: tuple[str, str, str] = SPAWN
) -> message_pb2.Message:
    mesh.answers.extend([calling(spawn), saying("Done.")])
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed or mesh.delays)
    assert (mesh.failed, mesh.delays) == (None, [])
    [result] = mesh.messages(message_pb2.ROLE_TOOL_RESULT)
    return result


async def test_SpawnSession__a_spawn_that_an_outage_undid_is_repeated_with_its_request_id(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = undone(Status.UNAVAILABLE, 3)
    result = await result_of(mesh, keys, tmp_path)
    assert not result.is_error
    assert (len(mesh.spawn_traces), len(mesh.spawns)) == (4, 1)


def without_gate(*, is_transient: bool) -> MeshError:
    facts = {"hook": "BEFORE_SPAWN", "plugin": "gate", TRANSIENT_FACT: transient_fact(is_transient)}
    return MeshError(Reason.PLUGIN_FAILED, "no answer", retry_after_seconds=0.01, facts=facts)


async def test_SpawnSession__a_spawn_waits_for_the_plugin_that_must_allow_it(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = deque([without_gate(is_transient=True)] * 3)
    result = await result_of(mesh, keys, tmp_path)
    assert not result.is_error
    assert (len(mesh.spawn_traces), len(mesh.spawns)) == (4, 1)


async def test_SpawnSession__a_spawn_does_not_wait_for_a_plugin_that_answers_wrongly(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = deque([without_gate(is_transient=False)])
    result = await result_of(mesh, keys, tmp_path)
    assert (result.is_error, len(mesh.spawn_traces)) == (True, 1)


async def test_SpawnSession__a_spawn_that_would_fail_again_is_not_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.refusals["SpawnSession"] = undone(Status.FAILED_PRECONDITION, 1)
    result = await result_of(mesh, keys, tmp_path)
    assert (result.is_error, len(mesh.spawn_traces)) == (True, 1)


async def test_SpawnSession__a_spawn_with_files_is_repeated_for_longer_than_other_calls(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the other calls' time the run goes to the queue, where what a spawn hands over is lost."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.001)
    mesh.refusals["SpawnSession"] = undone(Status.UNAVAILABLE, 3)
    result = await result_of(mesh, keys, tmp_path, WITH_FILE)
    assert (result.is_error, len(mesh.spawns)) == (False, 1)


async def test_SpawnSession__the_model_hears_of_an_outage_that_outlasts_a_spawn_with_files(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_spawn, "WITH_FILES_GIVE_UP_AFTER_SECONDS", 0.1)
    mesh.refusals["SpawnSession"] = undone(Status.UNAVAILABLE, 1000)
    result = await result_of(mesh, keys, tmp_path, WITH_FILE)
    assert result.is_error
    text = result.content[0].text.text
    assert text.startswith("SPAWN_FAILED: the child was not spawned")
    assert "(DEPENDENCY_UNAVAILABLE); spawn it again later" in text


@pytest.mark.parametrize("reason", [Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED])
@pytest.mark.parametrize("spawn", [SPAWN, WITH_FILE], ids=["without files", "with a file"])
async def test_SpawnSession__the_run_waits_if_no_answer_says_that_the_child_was_spawned(
    mesh: ScriptedMesh,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spawn: tuple[str, str, str],
    reason: Reason,
) -> None:
    """The next runner learns it for certain: no spawn of this epoch can begin then."""
    monkeypatch.setattr(retry, "GIVE_UP_AFTER_SECONDS", 0.001)
    monkeypatch.setattr(sessions_spawn, "WITH_FILES_GIVE_UP_AFTER_SECONDS", 0.001)
    no_answer = MeshError(reason, "no answer", retry_after_seconds=0.01)
    mesh.refusals["SpawnSession without a child"] = deque([no_answer] * 1000)
    mesh.answers.append(calling(spawn))
    mesh.queue_run(tools=("sessions_spawn",))
    async with running_runner(mesh, keys, tmp_path):
        await eventually(lambda: mesh.finalized or mesh.failed or mesh.delays)
    assert (mesh.failed, mesh.finalized, len(mesh.delays)) == (None, None, 1)
    assert mesh.messages(message_pb2.ROLE_TOOL_RESULT) == []
