"""Tools of MCP servers, among scripted peers."""

import json
import sys
from pathlib import Path

import pytest
from spawnmesh.errors.v1 import reason_pb2

from tests.support.runner.fixtures import running_runner
from tests.support.runner.mcp_fixtures import SDK_SERVER, config, http_server, stdio, text, tool_results
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

FORECAST = ("mcp__weather__forecast", '{"city": "Oslo", "days": 2}')


async def test_Generate__a_tool_of_a_server_made_with_the_SDK_is_offered_and_called(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    """Content other than text is described, and errors and traces pass."""
    calls = [FORECAST, *((f"mcp__weather__{tool}", "{}") for tool in ("picture", "fail", "traced"))]
    file = config(tmp_path, weather=stdio(program=SDK_SERVER))
    result, picture, failed, traced = await tool_results(
        mesh, keys, tmp_path, *calls, tools=("list_files",), mcp_config_file=file
    )
    assert (text(result), result.is_error, result.tool_name) == ("2 fine day(s) in Oslo", False, FORECAST[0])
    declared = {tool.name: tool for tool in mesh.prompts[0].tools}
    assert next(iter(declared)) == "list_files"
    assert declared["mcp__weather__forecast"].description == "Tells the weather."
    schema = json.loads(declared["mcp__weather__forecast"].parameters_json)
    assert schema["required"] == ["city"]
    assert not declared["mcp__weather__forecast"].is_idempotent
    assert mesh.prompts[0].system_prompt == "Be brief."
    assert mesh.finalized is not None
    assert mesh.finalized.draft_text == "Done."
    assert mesh.finalized.has_final_effects
    assert (text(picture), picture.is_error) == ("a cloud\n[image, image/png, 40 bytes; not shown]", False)
    assert failed.is_error
    assert text(failed).startswith("MCP_TOOL_ERROR: ")
    assert "no weather today" in text(failed)
    assert text(traced).startswith("00-0af7651916cd43dd8448eb211c80319c-")


@pytest.mark.parametrize("json_response", [False, True])
async def test_Generate__a_server_at_an_address(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, json_response: bool
) -> None:
    async with http_server(json_response=json_response) as url:
        file = config(tmp_path, weather={"url": url})
        result, measured = await tool_results(
            mesh, keys, tmp_path, FORECAST, ("mcp__weather__measure", "{}"), mcp_config_file=file
        )
    assert text(result) == "2 fine day(s) in Oslo"
    assert json.loads(text(measured)) == {"celsius": 21.5}


async def test_Generate__agents_that_name_no_server_get_none(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}))
    [result] = await tool_results(mesh, keys, tmp_path, FORECAST, mcp_servers=(), mcp_config_file=file)
    assert text(result).startswith("UNKNOWN_TOOL")
    assert not mesh.prompts[0].tools
    assert not notes.exists(), "nothing was started"


async def test_FailRun__an_agent_names_an_unknown_server(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    mesh.queue_run(mcp_servers=("weather", "unheard-of"))
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}))
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_MCP_SERVER_NOT_OFFERED
    assert "unheard-of" in mesh.failed.message
    assert "weather" not in mesh.failed.message
    assert mesh.prompts == []
    assert not notes.exists(), "nothing was started"


@pytest.mark.parametrize("tenants", [[], ["globex", "acme-2", "Acme"]])
async def test_FailRun__a_server_of_other_tenants_looks_unknown(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, tenants: list[str]
) -> None:
    mesh.queue_run(mcp_servers=("weather",))
    file = config(tmp_path, weather=stdio(tenants=tenants))
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    theirs = mesh.failed.message
    other = ScriptedMesh(mesh.minter)
    other.queue_run(mcp_servers=("weather",))
    async with running_runner(other, keys, tmp_path / "work"):
        await eventually(lambda: other.failed)
    assert other.failed is not None
    assert (other.failed.reason, other.failed.message) == (reason_pb2.REASON_MCP_SERVER_NOT_OFFERED, theirs)


async def test_Generate__only_allowed_tools_of_a_tenants_server_are_offered(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    file = config(tmp_path, weather=stdio(tenants=["globex", "acme"], tools=["forecast", "measure", "gone"]))
    called, refused = await tool_results(
        mesh, keys, tmp_path, FORECAST, ("mcp__weather__order_rain", '{"city": "Oslo"}'), mcp_config_file=file
    )
    assert text(called) == "2 fine day(s) in Oslo"
    assert text(refused).startswith("UNKNOWN_TOOL")
    assert [tool.name for tool in mesh.prompts[0].tools] == [
        "mcp__weather__forecast",
        "mcp__weather__measure",
    ]


async def test_Generate__arguments_are_checked_against_the_schema_before_the_call(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}))
    wrong = (
        ("mcp__weather__order_rain", "{}", "lacks city"),
        (FORECAST[0], '{"city": 4}', "city: does not fit type"),
        (FORECAST[0], '{"city": "Oslo", "days": "two"}', "days: does not fit type"),
        (FORECAST[0], "[]", "are not an object"),
    )
    calls = [(tool, arguments) for tool, arguments, _ in wrong]
    results = await tool_results(mesh, keys, tmp_path, *calls, mcp_config_file=file)
    for result, (tool, arguments, problem) in zip(results, wrong, strict=True):
        assert (result.tool_name, result.is_error) == (tool, True), arguments
        assert text(result).startswith("INVALID_ARGUMENTS"), arguments
        assert problem in text(result), arguments
    assert "ordered" not in notes.read_text()


async def test_Generate__a_long_result_is_truncated_with_a_note(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    file = config(tmp_path, weather=stdio(max_result_bytes=1025))
    long, short = await tool_results(
        mesh,
        keys,
        tmp_path,
        ("mcp__weather__long_report", '{"size": 5000000}'),
        ("mcp__weather__long_report", '{"size": 1024}'),
        mcp_config_file=file,
    )
    assert text(long) == "ä" * 512 + "\n[truncated: the first 1024 of 5000000 bytes; the rest was not kept]"
    assert text(short) == "ä" * 512


async def test_Generate__the_model_reads_which_servers_are_unavailable(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    file = config(
        tmp_path,
        weather=stdio(),
        missing={"command": "no-such-command-anywhere"},
        keyless={"url": "http://127.0.0.1:9/mcp", "bearer_token": "env:NO_SUCH_VARIABLE"},
        away={"url": "http://127.0.0.1:9/mcp"},
        ends={"command": sys.executable, "args": ["-c", "pass"]},
        mute={"command": "sleep", "args": ["600"], "connect_timeout_seconds": 1},
    )
    servers = ("weather", "missing", "keyless", "away", "ends", "mute")
    [result] = await tool_results(mesh, keys, tmp_path, FORECAST, mcp_servers=servers, mcp_config_file=file)
    assert text(result) == "2 fine day(s) in Oslo"
    lines = mesh.prompts[0].system_prompt.splitlines()
    assert lines[0] == "Be brief."
    assert lines[3:] == [
        "- missing: it could not be started",
        "- keyless: a secret that its configuration refers to is missing",
        "- away: it could not be reached, or did not answer as an MCP server does",
        "- ends: it ended, or did not answer as an MCP server does",
        "- mute: it did not answer within 1 seconds",
    ]
    assert mesh.prompts[1].system_prompt == mesh.prompts[0].system_prompt
