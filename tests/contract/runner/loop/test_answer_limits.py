"""An answer beyond the transcript's limits loses only the excess of its calls.

The run continues, and the model reads why.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import decision_pb2, event_pb2
from spawnmesh_client.turn_messages import calls_of

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import TENANT, ScriptedMesh
from tests.support.transcript.bodies import user
from tests.support.transcript.fixtures import Service, Session
from tests.support.waiting import eventually

ASSISTANT, RESULT = message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL_RESULT
DEEP = '{"task": "t", "x": ' + "[" * 300 + "]" * 300 + "}"
NESTED = '{"path": ' + "[" * 5_000 + "]" * 5_000 + "}"
WRITE = ("c1", "write_file", '{"path": "a.txt", "content": "x"}')


@pytest.fixture
async def real(mesh: ScriptedMesh, service: Service) -> Session:
    """Return the same session in the transcript service, which enforces its limits."""
    session = Session(service, TENANT, mesh.session_id)
    await session.create()
    await session.append([user("Do it.")])
    return session


class StoredRun:
    """The stored calls of a run and the results, in order."""

    def __init__(self, messages: list[message_pb2.Message]) -> None:
        self.calls = [call for message in messages for call in calls_of(message) if message.role == ASSISTANT]
        self.results = [message for message in messages if message.role == RESULT]
        self.texts = [result.content[0].text.text for result in self.results]


async def execute_run(
    mesh: ScriptedMesh, keys: Path, folder: Path, service: Service, real: Session
) -> StoredRun:
    mesh.answers.append(saying("Done."))
    mesh.queue_run(tools=("list_files", "write_file", "sessions_spawn"))
    async with running_runner(mesh, keys, folder, transcript_target=service.target):
        await eventually(lambda: mesh.finalized or mesh.failed)
    assert mesh.failed is None
    return StoredRun([entry.body.message for entry in await real.entries()])


async def test_AppendEntries__unstorable_arguments_are_dropped_and_the_other_calls_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    mesh.answers.append(
        calling(("c1", "sessions_spawn", DEEP), ("c2", "list_files", NESTED), ("c3", *WRITE[1:]))
    )
    stored = await execute_run(mesh, keys, tmp_path, service, real)
    assert [(result.tool_call_id, result.is_error) for result in stored.results] == [
        ("c1", True),
        ("c2", True),
        ("c3", False),
    ]
    for text in stored.texts[:2]:
        assert text.startswith("INVALID_ARGUMENTS: the arguments are left out: nested too deep")
    assert mesh.spawns == {}


async def test_AppendEntries__an_unstorable_call_id_is_replaced(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    given = ["c" * 300, "é" * 200, " ", "a\0b"]
    answer = calling(*((str(number), *WRITE[1:]) for number in range(len(given))))
    for block, call_id in zip(answer.content[-len(given) :], given, strict=True):
        block.tool_call.tool_call_id = call_id
    mesh.answers.append(answer)
    stored = await execute_run(mesh, keys, tmp_path, service, real)
    ids = [call.tool_call_id for call in stored.calls]
    assert len(set(ids)) == len(given)
    assert not set(ids) & set(given)
    assert [(result.tool_call_id, result.is_error) for result in stored.results] == [
        (call_id, False) for call_id in ids
    ]
    assert [json.loads(call.block_json)["id"] for call in stored.calls] == ids


async def test_AppendEntries__an_unstorable_tool_name_is_an_unknown_tool(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    mesh.answers.append(calling(("c1", "x" * 300, "{}"), ("c2", " ", "{}")))
    texts = (await execute_run(mesh, keys, tmp_path, service, real)).texts
    assert [text.partition(": ")[0] for text in texts] == ["UNKNOWN_TOOL", "UNKNOWN_TOOL"]


async def test_AppendEntries__too_many_calls_are_cut_and_the_last_kept_one_says_so(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    mesh.answers.append(calling(*((f"c{number}", "list_files", "{}") for number in range(300))))
    stored = await execute_run(mesh, keys, tmp_path, service, real)
    assert len(stored.results) == len(stored.calls) >= 255
    assert [result.is_error for result in stored.results] == [False] * (len(stored.results) - 1) + [True]
    assert "left out: with this call the answer has as many" in stored.texts[-1]


async def test_AppendEntries__each_call_of_an_answer_has_its_own_id_and_result(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    mesh.answers.append(
        calling(WRITE, ("c1", "list_files", "{}"), ("c2", "list_files", "{}"), ("c1", "no_such", "{}"))
    )
    stored = await execute_run(mesh, keys, tmp_path, service, real)
    ids = [call.tool_call_id for call in stored.calls]
    assert [ids[0], ids[2]] == ["c1", "c2"]
    assert len(set(ids)) == len(ids)
    assert ids == [json.loads(call.block_json)["id"] for call in stored.calls]
    shown = [message for message in mesh.prompts[1].messages if message.role == RESULT]
    assert [result.tool_call_id for result in shown] == ids
    assert [result.tool_name for result in shown] == ["write_file", "list_files", "list_files", "no_such"]


@pytest.mark.parametrize(
    "arguments", [NESTED, '{"path": "\n"}', "[1]"], ids=["nested", "raw line break", "no object"]
)
async def test_DispatchBeforeToolCall__a_malformed_rewrite_fails_only_its_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session, arguments: str
) -> None:
    rewriting(mesh, arguments)
    mesh.answers.append(calling(WRITE))
    [text] = (await execute_run(mesh, keys, tmp_path, service, real)).texts
    assert text.startswith("PLUGIN_FAILED: ")


async def test_AppendEntries__of_an_unstorable_rewrite_only_the_result_is_stored(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    rewriting(mesh, DEEP)
    mesh.answers.append(calling(("c1", "sessions_spawn", '{"task": "t"}')))
    stored = await execute_run(mesh, keys, tmp_path, service, real)
    [result] = stored.results
    assert (len(result.content), stored.texts[0].partition(":")[0]) == (1, "INVALID_ARGUMENTS")


async def test_DispatchBeforeToolCall__arguments_nested_too_deep_fail_only_their_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, service: Service, real: Session
) -> None:
    """The depths are around the one that the parser of JSON refuses."""
    mesh.hooks.active = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL]
    nested = ['{"path": ' + "[" * depth + "]" * depth + "}" for depth in range(934, 942)]
    mesh.answers.append(calling(*((f"c{number}", "list_files", one) for number, one in enumerate(nested))))
    texts = (await execute_run(mesh, keys, tmp_path, service, real)).texts
    assert [text.partition(": ")[0] for text in texts] == ["INVALID_ARGUMENTS"] * len(nested)


def rewriting(mesh: ScriptedMesh, arguments: str) -> None:
    answer: Any = decision_pb2.ToolCallDecision(rewrite=decision_pb2.Rewrite(arguments_json=arguments))
    mesh.hooks.active, mesh.hooks.tool_call = [event_pb2.HOOK_KIND_BEFORE_TOOL_CALL], answer
