"""Misbehaving MCP servers: the run continues, and the model reads the outcome of its call."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.hook.v1 import decision_pb2, event_pb2

from tests.support.runner.mcp_fixtures import HOSTILE, config, stdio, text, tool_results
from tests.support.runner.scripted_mesh import ScriptedMesh

GOOD = ("mcp__h__good", "{}")


async def called(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, trick: str, *calls: tuple[str, str], **options: Any
) -> list[str]:
    file = config(tmp_path, h=stdio(trick, program=HOSTILE, call_timeout_seconds=60))
    results = await tool_results(
        mesh, keys, tmp_path, *(calls or (GOOD,)), mcp_servers=("h",), mcp_config_file=file, **options
    )
    return list(map(text, results))


async def test_unusable_tools_are_left_out(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    await called(mesh, keys, tmp_path, "unusable")
    declared = {tool.name: tool for tool in mesh.prompts[0].tools}
    assert [name.removeprefix("mcp__h__") for name in declared] == [
        "good",
        "huge",
        "tree",
        "elsewhere",
        "slow",
    ]
    assert declared["mcp__h__good"].description == "Fine.\ufffd[31m\ufffd\ufffd Hidden."
    assert declared["mcp__h__huge"].description.startswith(
        "é" * 4096 + "\n[truncated: the first 8192 of 10000000 bytes"
    )
    for tool in declared.values():
        assert len(tool.parameters_json) < 2_000
        assert "$ref" not in tool.parameters_json
    tree = json.loads(declared["mcp__h__tree"].parameters_json)
    assert tree["properties"] == {"name": {"type": "string"}, "left": {}}


async def test_expressions_of_a_server_are_not_evaluated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    arguments = json.dumps({"a": "a" * 5_000 + "!", "b" * 5_000 + "!": 1})
    [result] = await called(mesh, keys, tmp_path, "plain", ("mcp__h__slow", arguments))
    assert result.startswith("MCP_ERROR: boom"), "the call was made"


async def test_an_error_message_is_truncated(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    [result] = await called(mesh, keys, tmp_path, "plain")
    assert result.startswith("MCP_ERROR: boom \ufffd[31mmmm")
    assert result.endswith("; the rest was not kept]")
    assert len(result) < 2_200


async def test_an_endless_list_is_read_to_a_limit(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    await called(mesh, keys, tmp_path, "endless", ("mcp__h__one", "{}"))
    assert [tool.name for tool in mesh.prompts[0].tools] == ["mcp__h__one"]


async def test_a_malformed_list_makes_the_server_unavailable(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    [result] = await called(mesh, keys, tmp_path, "malformed")
    assert result.startswith("UNKNOWN_TOOL: ")
    assert mesh.prompts[0].system_prompt.endswith("- h: it ended, or did not answer as an MCP server does")


@pytest.mark.parametrize("trick", ["garbage", "shapeless"])
async def test_a_malformed_answer_is_an_error_at_once(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, trick: str
) -> None:
    [result] = await called(mesh, keys, tmp_path, trick)
    assert result.startswith(("MCP_ERROR: malformed answer", "MCP_MALFORMED_ANSWER: "))


async def test_a_servers_requests_for_sampling_and_roots_are_refused(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    assert await called(mesh, keys, tmp_path, "asking") == ["error error"]


@pytest.mark.parametrize(
    ("trick", "what"),
    [
        ("flood", "a message of more than 16777216 bytes"),
        ("newlines", "more than 1000 lines, or 1048576 bytes, in a row that are no messages"),
        ("lines", "more than 1000 lines, or 1048576 bytes, in a row that are no messages"),
    ],
)
async def test_endless_output_ends_the_server(
    mesh: ScriptedMesh,
    keys: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trick: str,
    what: str,
) -> None:
    [result] = await called(mesh, keys, tmp_path, trick, log_level="warning")
    ended = f"MCP_LIMIT_EXCEEDED: the server was ended, because it wrote {what}"
    assert result == f"{ended}; it may or may not have been done"
    lines = [line for line in capsys.readouterr().out.splitlines() if "mcp_server_above_limit" in line]
    assert [json.loads(line)["why"] for line in lines] == [f"it wrote {what}"]


async def test_output_that_is_no_message_is_skipped(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    assert await called(mesh, keys, tmp_path, "chatty", GOOD, GOOD) == ["done", "done"]


async def test_plugins_block_mcp_calls_too(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.hooks.active = (event_pb2.HOOK_KIND_BEFORE_TOOL_CALL, event_pb2.HOOK_KIND_AFTER_TOOL_CALL)
    mesh.hooks.tool_call = decision_pb2.ToolCallDecision(block=decision_pb2.Block(reason="not today"))
    [result] = await called(mesh, keys, tmp_path, "plain")
    assert result == "BLOCKED: not today"
    assert mesh.hooks.asked[0].tool_name == "mcp__h__good"
    outcomes = [event.after_tool_call for event in mesh.hooks.published]
    assert [(one.tool_name, one.error_reason) for one in outcomes] == [("mcp__h__good", "BLOCKED")]
