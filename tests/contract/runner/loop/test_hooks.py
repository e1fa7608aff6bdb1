"""Hooks that a runner dispatches and events that it publishes."""

import json
from pathlib import Path

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling, saying
from tests.support.runner.fixtures import running_runner
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

RESULT = message_pb2.ROLE_TOOL_RESULT
SPAWN = {"task": "t", "attachments": [{"name": "a.txt", "content": "handed over"}]}


async def execute_run(mesh: ScriptedMesh, keys: Path, folder: Path) -> None:
    async with running_runner(mesh, keys, folder):
        await eventually(lambda: mesh.finalized or mesh.failed)


def results(mesh: ScriptedMesh) -> list[str]:
    return [message.content[0].text.text for message in mesh.messages(RESULT)]


async def test_hooks_without_subscribers_are_not_dispatched(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("done")])
    mesh.queue_run(tools=("list_files",))
    await execute_run(mesh, keys, tmp_path)
    assert mesh.finalized is not None
    assert (mesh.hooks.asked, mesh.hooks.published) == ([], [])


async def test_before_model_resolve_puts_a_model_first(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_MODEL_RESOLVE]
    mesh.hooks.model = decisions.ModelDecision(model="small")
    mesh.answers.append(saying("done"))
    mesh.queue_run()
    await execute_run(mesh, keys, tmp_path)
    before = list(mesh.hooks.asked[0].models)
    [prompt] = mesh.prompts
    after = [
        prompt.model,
        *(prompt.fallbacks.models if prompt.HasField("fallbacks") else prompt.fallback_models),
    ]
    assert after == ["small", *filter(None, before)]


async def test_before_prompt_build_changes_the_prompt(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_PROMPT_BUILD]
    mesh.hooks.prompt = decisions.PromptDecision(
        system_prompt="Be brief.",
        context="It is Monday.",
        tools=decisions.ToolList(names=["read_file", "nothing"]),
    )
    mesh.answers.append(saying("done"))
    mesh.queue_run(tools=("list_files", "read_file"))
    await execute_run(mesh, keys, tmp_path)
    [prompt] = mesh.prompts
    assert prompt.system_prompt == "Be brief.\n\nIt is Monday."
    assert [tool.name for tool in prompt.tools] == ["read_file"]
    assert list(mesh.hooks.asked[0].tool_names) == ["list_files", "read_file"]


async def test_arguments_that_no_gate_is_shown_fail_only_their_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.tool_call = decisions.ToolCallDecision(proceed=decisions.Proceed())
    empty = json.dumps({"path": "a", "content": ""})
    contents = ["x" * (1024 * 1024 - len(empty) + more) for more in (0, 1)]
    calls = [(f"c{len(one)}", "write_file", json.dumps({"path": "a", "content": one})) for one in contents]
    mesh.answers.extend([calling(*calls), saying("done")])
    mesh.queue_run(tools=("write_file",))
    await execute_run(mesh, keys, tmp_path)
    assert mesh.finalized is not None
    assert [len(asked.arguments_json) for asked in mesh.hooks.asked] == [1024 * 1024]
    assert json.loads(results(mesh)[0])["bytes"] == len(contents[0])
    assert results(mesh)[1].startswith("INVALID_ARGUMENTS: the arguments have more than 1048576 bytes")


async def test_before_tool_call_blocks(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL, events.HOOK_KIND_AFTER_TOOL_CALL]
    mesh.hooks.tool_call = decisions.ToolCallDecision(block=decisions.Block(reason="not on Mondays"))
    mesh.answers.extend([calling(("c1", "write_file", '{"path":"a","content":"x"}')), saying("done")])
    mesh.queue_run(tools=("write_file",))
    await execute_run(mesh, keys, tmp_path)
    assert results(mesh) == ["BLOCKED: not on Mondays"]
    assert [event.after_tool_call.error_reason for event in mesh.hooks.published] == ["BLOCKED"]


async def test_before_tool_call_rewrites_arguments(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    rewritten = decisions.Rewrite(arguments_json='{"path":"b.txt","content":"x"}')
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=rewritten)
    mesh.answers.extend([calling(("c1", "write_file", '{"path":"a.txt","content":"x"}')), saying("done")])
    mesh.queue_run(tools=("write_file",))
    await execute_run(mesh, keys, tmp_path)
    assert "b.txt" in results(mesh)[0]
    assert json.loads(mesh.hooks.asked[0].arguments_json)["path"] == "a.txt"


BLOCKS: dict[str, dict[str, object]] = {
    "arguments": {
        "type": "toolCall",
        "id": "c1",
        "name": "write_file",
        "arguments": {"path": "a.txt", "content": "x"},
    },
    "text": {
        "type": "functionCall",
        "id": "c1",
        "name": "write_file",
        "arguments": '{"path":"a.txt","content":"x"}',
        "n": 1,
    },
    "input": {
        "type": "tool_use",
        "id": "c1",
        "name": "write_file",
        "input": {"path": "a.txt", "content": "x"},
    },
}


@pytest.mark.parametrize("shape", BLOCKS)
async def test_a_rewritten_call_is_stored_and_read_as_it_was_made(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, shape: str
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.tool_call = decisions.ToolCallDecision(
        rewrite=decisions.Rewrite(arguments_json='{"path":"b.txt","content":"x"}')
    )
    answer = saying("")
    given = json.dumps(BLOCKS[shape])
    answer.content.add(tool_call=message_pb2.ToolCall(tool_call_id="c1", name="write_file", block_json=given))
    mesh.answers.extend([answer, saying("done")])
    mesh.queue_run(tools=("write_file",))
    await execute_run(mesh, keys, tmp_path)
    member = "input" if shape == "input" else "arguments"
    arguments: object = {"path": "b.txt", "content": "x"}
    made = {**BLOCKS[shape], member: json.dumps(arguments) if shape == "text" else arguments}

    [asked, *_] = mesh.messages(message_pb2.ROLE_ASSISTANT)
    assert [block.tool_call.block_json for block in asked.content if block.HasField("tool_call")] == [given]
    [result] = mesh.messages(RESULT)
    assert result.content[1].tool_call.tool_call_id == "c1"
    kept = json.loads(result.content[1].tool_call.block_json)
    assert kept == {**made, "rewrittenBy": ["gate", "scrubber"]}

    _, prompt = mesh.prompts
    read = [
        block.tool_call.block_json
        for message in prompt.messages
        for block in message.content
        if block.HasField("tool_call")
    ]
    assert [json.loads(block_json) for block_json in read] == [kept]
    assert [block.WhichOneof("block") for block in prompt.messages[-1].content] == ["text"]


async def test_a_rewrite_with_equal_arguments_changes_nothing(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    same = decisions.Rewrite(arguments_json='{"content": "x", "path": "a.txt"}')
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=same)
    mesh.answers.extend([calling(("c1", "write_file", '{"path":"a.txt","content":"x"}')), saying("done")])
    mesh.queue_run(tools=("write_file",))
    await execute_run(mesh, keys, tmp_path)
    [result] = mesh.messages(RESULT)
    assert [block.WhichOneof("block") for block in result.content] == ["text"]


async def test_a_rewrite_with_a_redaction_marker_is_refused_and_not_stored(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    rewritten = decisions.Rewrite(arguments_json='{"task":"another"}')
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=rewritten)
    file = {"name": "a.txt", "content": {"$redacted": "attachment", "sha256": "0" * 64, "bytes": 3}}
    mesh.write(calling(("c1", "sessions_spawn", json.dumps({"task": "t", "attachments": [file]}))), epoch=1)
    mesh.answers.append(saying("done"))
    mesh.queue_run(tools=("sessions_spawn",), epoch=2)
    await execute_run(mesh, keys, tmp_path)
    assert mesh.finalized is not None
    assert mesh.spawns == {}
    [result] = mesh.messages(RESULT)
    assert [block.WhichOneof("block") for block in result.content] == ["text"]
    assert result.is_error


async def test_a_failed_before_tool_call_blocks_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    mesh.hooks.tool_call = MeshError(Reason.PLUGIN_FAILED, "plugin gate gave no valid answer")
    mesh.answers.extend([calling(("c1", "list_files", "{}")), saying("done")])
    mesh.queue_run(tools=("list_files",))
    await execute_run(mesh, keys, tmp_path)
    assert results(mesh) == ["PLUGIN_FAILED: plugin gate gave no valid answer"]
    assert mesh.finalized is not None


async def test_a_repeated_call_is_dispatched_again(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL, events.HOOK_KIND_AFTER_TOOL_CALL]
    mesh.hooks.tool_call = decisions.ToolCallDecision(block=decisions.Block(reason="no"))
    entry_id = mesh.write(calling(("c1", "list_files", "{}")), epoch=1)
    mesh.answers.append(saying("done"))
    mesh.queue_run(tools=("list_files",), epoch=2)
    await execute_run(mesh, keys, tmp_path)
    assert results(mesh) == ["BLOCKED: no"]
    assert [event.event_key for event in mesh.hooks.published] == [f"after_tool_call:v1:{entry_id}:0"]


async def test_llm_events_have_texts_without_calls(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = [events.HOOK_KIND_LLM_INPUT, events.HOOK_KIND_LLM_OUTPUT]
    mesh.answers.extend([calling(("c1", "sessions_spawn", json.dumps(SPAWN))), saying("done")])
    mesh.queue_run(tools=("sessions_spawn",))
    await execute_run(mesh, keys, tmp_path)
    kinds = [event.WhichOneof("event") for event in mesh.hooks.published]
    assert kinds == ["llm_input", "llm_output"] * 2
    assert len({event.event_key for event in mesh.hooks.published}) == 4
    assert mesh.hooks.published[0].llm_input.messages[0].content[0].text.text == "Do it."
    assert mesh.hooks.published[3].llm_output.message.content[0].text.text == "done"
    assert not any(b"handed over" in event.SerializeToString() for event in mesh.hooks.published)


async def test_plugins_neither_see_nor_change_files_of_a_spawn(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.hooks.active = [events.HOOK_KIND_BEFORE_TOOL_CALL]
    rewritten = decisions.Rewrite(arguments_json=json.dumps({"task": "another", "attachments": []}))
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=rewritten)
    mesh.answers.extend([calling(("c1", "sessions_spawn", json.dumps(SPAWN))), saying("done")])
    mesh.queue_run(tools=("sessions_spawn",))
    await execute_run(mesh, keys, tmp_path)
    assert "handed over" not in mesh.hooks.asked[0].arguments_json
    [spawned] = mesh.spawns.values()
    assert spawned.task == "another"
    assert [file.content for file in spawned.attachments] == ["handed over"]


FILES: dict[str, object] = {
    "a JSON text": {"task": "t", "attachments": json.dumps(SPAWN["attachments"])},
    "one file": {"task": "t", "attachments": {"name": "a.txt", "content": "handed over"}},
    "texts": {"task": "t", "attachments": ["handed over"]},
    "another name": {"task": "t", "Attachments": SPAWN["attachments"]},
    "another name of the content": {"task": "t", "attachments": [{"name": "a.txt", "data": "handed over"}]},
    "lines": {"task": "t", "attachments": [{"name": "a.txt", "content": ["handed over"]}]},
    "deeper": {"task": "t", "input": {"attachments": SPAWN["attachments"]}},
    "a list": [SPAWN],
    "a place for a text": {"task": SPAWN},
}


@pytest.mark.parametrize("shape", FILES)
async def test_plugins_do_not_see_files_in_unexpected_arguments(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, shape: str
) -> None:
    mesh.hooks.active = [kind for _, kind in events.HookKind.items() if kind]
    rewritten = decisions.Rewrite(arguments_json=json.dumps({"task": "another"}))
    mesh.hooks.tool_call = decisions.ToolCallDecision(rewrite=rewritten)
    mesh.answers.extend([calling(("c1", "sessions_spawn", json.dumps(FILES[shape]))), saying("done")])
    mesh.queue_run(tools=("sessions_spawn",))
    await execute_run(mesh, keys, tmp_path)
    events_seen = [*mesh.hooks.asked, *mesh.hooks.published]
    assert not any(b"handed over" in event.SerializeToString() for event in events_seen)
    [outcome] = [event.after_tool_call for event in mesh.hooks.published if event.HasField("after_tool_call")]
    assert outcome.error_reason == ("INVALID_ARGUMENTS" if isinstance(FILES[shape], dict) else "")
