"""Calls that an earlier runner began: repeated only if the repeat is the same call.

Otherwise the model reads that the outcome is unknown.
"""

import json
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh_client.turn_messages import text_message, text_of
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_runner.domain.request_ids import call_request_id

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.runner.sessions import child_of
from tests.support.waiting import eventually

RESULT = message_pb2.ROLE_TOOL_RESULT
MASKED = f'key = "{marker(Secret.PROVIDER_KEY)}"'


async def results_of_run(
    mesh: ScriptedMesh, keys: Path, folder: Path, *tools: str, epoch: int = 2
) -> list[str]:
    """Return the results that the run's models read."""
    mesh.answers.append(saying("Done."))
    mesh.queue_run(epoch=epoch, tools=tools)
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    return list(map(text_of, mesh.messages(RESULT)))


async def test_a_call_with_a_masked_secret_is_not_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    written: list[Path] = []
    mesh.on_generate = lambda: written.extend(tmp_path.rglob("a.toml"))
    mesh.write(calling(("c1", "write_file", json.dumps({"path": "a.toml", "content": MASKED}))))
    [text] = await results_of_run(mesh, keys, tmp_path, "write_file")
    assert text.startswith("OUTCOME_UNKNOWN: ")
    assert "the secret or the file in this call" in text
    assert written == []


async def test_an_idempotent_call_without_a_mask_is_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(calling(("c1", "write_file", json.dumps({"path": "a.toml", "content": "key"}))))
    [text] = await results_of_run(mesh, keys, tmp_path, "write_file")
    assert json.loads(text)["bytes"] == 3


async def test_a_call_of_a_removed_tool_has_an_unknown_outcome(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    calls = ("sessions_spawn", '{"task": "t"}'), ("mcp__pay__send", "{}"), ("no_such_tool", "{}")
    mesh.write(calling(*((f"c{number}", *call) for number, call in enumerate(calls))))
    texts = await results_of_run(mesh, keys, tmp_path, "list_files")
    assert [text.partition(":")[0] for text in texts] == [
        "OUTCOME_UNKNOWN",
        "OUTCOME_UNKNOWN",
        "UNKNOWN_TOOL",
    ]
    assert mesh.spawns == {}
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects


@pytest.mark.parametrize(("tool", "has_final_effects"), [("mcp__pay__send", True), ("write_file", False)])
async def test_tools_of_an_earlier_runner_count_as_final_effects(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, tool: str, has_final_effects: bool
) -> None:
    mesh.write(calling(("c1", tool, "{}")))
    mesh.write(message_pb2.Message(role=RESULT, tool_call_id="c1", tool_name=tool))
    mesh.answers.append(calling(("c2", "list_files", "{}")))
    await results_of_run(mesh, keys, tmp_path, "list_files")
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects is has_final_effects


@pytest.mark.parametrize(
    ("text", "has_final_effects"),
    [
        ("BLOCKED: not without a person", False),
        ("PLUGIN_FAILED: it did not answer", False),
        ("MCP_TOOL_ERROR: BLOCKED: half of it is paid", True),
        ("OUTCOME_UNKNOWN: it may have been done", True),
    ],
)
async def test_a_blocked_call_is_no_final_effect(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, text: str, has_final_effects: bool
) -> None:
    mesh.write(calling(("c1", "mcp__pay__send", "{}")))
    result = text_message(RESULT, text)
    result.tool_call_id, result.tool_name, result.is_error = "c1", "mcp__pay__send", True
    mesh.write(result)
    mesh.answers.append(calling(("c1", "list_files", "{}")))
    await results_of_run(mesh, keys, tmp_path, "list_files")
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects is has_final_effects


async def test_a_tool_that_the_first_runner_lacks_has_no_effect(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.append(calling(("c1", "mcp__pay__send", "{}"), ("c2", "sessions_spawn", '{"task": "t"}')))
    texts = await results_of_run(mesh, keys, tmp_path, "list_files", epoch=1)
    assert [text.partition(":")[0] for text in texts] == ["UNKNOWN_TOOL"] * 2
    assert mesh.finalized is not None
    assert not mesh.finalized.has_final_effects


async def test_ListSessions__a_reused_request_id_gets_the_child_of_the_first_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """A plugin that stamps tasks causes this, and so does a file that changed between the two
    calls.
    """
    entry_id = mesh.write(calling(("c1", "sessions_spawn", '{"task": "Read it."}')))
    first = session_pb.SpawnSessionRequest(
        request_id=call_request_id(entry_id, 0), task="Read it.", label="of the first runner"
    )
    mesh.spawns[first.request_id] = first
    [text] = await results_of_run(mesh, keys, tmp_path, "sessions_spawn")
    assert json.loads(text)["session_id"] == child_of(first).session_id
