"""MCP servers that are processes: what they see, and that they end with the run on every path."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh_client.turn_messages import text_message
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.model_router.answers import calling
from tests.support.runner.fixtures import OFTEN, running_runner
from tests.support.runner.mcp_fixtures import RESULT, config, is_alive, stdio, text, tool_results
from tests.support.runner.scripted_mesh import ScriptedMesh
from tests.support.waiting import eventually

PIDS = ("mcp__weather__pid", "{}")
STUBBORN = ("mcp__weather__stubborn", "{}")
FORECAST = ("mcp__weather__forecast", '{"city": "Oslo"}')


def pids_in(result: message_pb2.Message) -> list[int]:
    assert not result.is_error, text(result)
    return [int(word) for word in text(result).split()]


def are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


async def test_a_server_sees_only_its_own_environment_and_the_workspace(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_SIGNING_KEY_FILE", "must-not-leak-1")
    monkeypatch.setenv("SOME_TOKEN", "must-not-leak-2")
    key = tmp_path / "key"
    key.write_text("sesame-sesame\n")
    monkeypatch.setenv("WEATHER_KEY", "must-not-be-told")
    env = {"API_KEY": "env:WEATHER_KEY", "FILE_KEY": f"file:{key}", "REGION": "north"}
    [result] = await tool_results(
        mesh,
        keys,
        tmp_path,
        ("mcp__weather__environment", "{}"),
        mcp_config_file=config(tmp_path, weather=stdio(env=env)),
    )
    seen = dict(line.split("=", 1) for line in text(result).splitlines())
    workspace = tmp_path / "work" / f"{mesh.session_id}-1"
    assert seen.pop("cwd") == str(workspace)
    assert seen.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python sets it.
    assert seen == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(workspace / ".mcp" / "weather"),
        "TMPDIR": str(workspace / ".mcp" / "weather"),
        "LANG": "C.UTF-8",
        "PYTHONSAFEPATH": "1",
        "REGION": "north",
        "API_KEY": "[$redacted:mcp_secret]",
        "FILE_KEY": "[$redacted:mcp_secret]",
    }
    stored = b"".join(entry.SerializeToString() for entry in mesh.entries)
    asked = b"".join(prompt.SerializeToString() for prompt in mesh.prompts)
    for secret in (b"must-not", b"sesame"):
        assert secret not in stored + asked


async def test_a_finished_run_leaves_no_process(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    [result] = await tool_results(
        mesh, keys, tmp_path, PIDS, mcp_config_file=config(tmp_path, weather=stdio())
    )
    await eventually(lambda: are_gone(pids_in(result)))


async def test_a_stubborn_server_is_killed(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    [result] = await tool_results(
        mesh, keys, tmp_path, STUBBORN, mcp_config_file=config(tmp_path, weather=stdio())
    )
    await eventually(lambda: are_gone(pids_in(result)))


async def test_a_failed_run_leaves_no_process(mesh: ScriptedMesh, keys: Path, tmp_path: Path) -> None:
    mesh.answers.extend([calling(("c", *STUBBORN)), MeshError(Reason.MODEL_REFUSED, "no")])
    mesh.queue_run(mcp_servers=("weather",))
    async with running_runner(
        mesh, keys, tmp_path / "work", mcp_config_file=config(tmp_path, weather=stdio())
    ):
        await eventually(lambda: mesh.failed)
    assert mesh.failed is not None
    assert mesh.failed.reason == reason_pb2.REASON_MODEL_REFUSED
    await eventually(lambda: are_gone(pids_in(mesh.messages(RESULT)[0])))


async def held_after(mesh: ScriptedMesh, *calls: tuple[str, str]) -> None:
    """Have the model make the calls and then never answer."""
    for number, call in enumerate(calls):
        mesh.answers.append(calling((f"c{number}", *call)))
    mesh.hold_model = asyncio.Event()
    mesh.hold_model.set()
    hold = mesh.hold_model

    def hold_on() -> None:
        if len(mesh.prompts) > len(calls):
            hold.clear()

    mesh.on_generate = hold_on


@pytest.mark.parametrize("call", [PIDS, STUBBORN])
async def test_a_lost_lease_leaves_no_process(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, call: tuple[str, str]
) -> None:
    """A killed run loses its lease."""
    await held_after(mesh, call)
    mesh.queue_run(mcp_servers=("weather",))
    file = config(tmp_path, weather=stdio())
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file, heartbeat_share=OFTEN):
        await eventually(lambda: mesh.messages(RESULT) and mesh.model_called.is_set())
        pids = pids_in(mesh.messages(RESULT)[0])
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        mesh.lease_lost = True
        await eventually(lambda: are_gone(pids) and not os.listdir(tmp_path / "work"))
    assert (mesh.failed, mesh.finalized) == (None, None)


@pytest.mark.parametrize("call", [PIDS, STUBBORN])
async def test_a_released_run_leaves_no_process(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, call: tuple[str, str]
) -> None:
    """The runner is stopped, and the run outlasts the grace time."""
    await held_after(mesh, call)
    mesh.queue_run(mcp_servers=("weather",))
    async with running_runner(
        mesh,
        keys,
        tmp_path / "work",
        mcp_config_file=config(tmp_path, weather=stdio()),
        drain_grace_seconds=0.1,
    ):
        await eventually(lambda: len(mesh.prompts) == 2)
    assert mesh.released == [1]
    await eventually(lambda: are_gone(pids_in(mesh.messages(RESULT)[0])))
    assert os.listdir(tmp_path / "work") == []


async def test_a_run_lost_during_a_call_leaves_no_process(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    mesh.answers.append(calling(("c", "mcp__weather__sleep", '{"seconds": 600}')))
    mesh.queue_run(mcp_servers=("weather",))
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}, call_timeout_seconds=600))
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file, heartbeat_share=OFTEN):
        await eventually(lambda: notes.exists() and "sleeping" in notes.read_text())
        pid = int(notes.read_text().split()[-1])
        assert is_alive(pid)
        mesh.lease_lost = True
        await eventually(lambda: not is_alive(pid) and not os.listdir(tmp_path / "work"))
    assert mesh.messages(RESULT) == []


async def test_a_run_lost_while_connecting_leaves_no_process(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}; trap '' TERM; while :; do sleep 1; done"
    mesh.queue_run(mcp_servers=("mute",))
    file = config(tmp_path, mute={"command": "sh", "args": ["-c", script], "connect_timeout_seconds": 600})
    async with running_runner(mesh, keys, tmp_path / "work", mcp_config_file=file, heartbeat_share=OFTEN):
        await eventually(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        mesh.lease_lost = True
        await eventually(lambda: not is_alive(pid) and not os.listdir(tmp_path / "work"))


async def test_a_slow_call_times_out_and_the_server_stays(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}, call_timeout_seconds=5))
    late, fine = await tool_results(
        mesh, keys, tmp_path, ("mcp__weather__sleep", '{"seconds": 30}'), FORECAST, mcp_config_file=file
    )
    assert late.is_error
    assert text(late) == "MCP_TIMEOUT: no answer within 5 seconds; it may or may not have been done"
    assert text(fine) == "1 fine day(s) in Oslo"
    assert notes.read_text().count("started") == 1


async def test_a_server_that_crashes_at_its_start_is_logged_with_its_last_words(
    mesh: ScriptedMesh,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEATHER_KEY", "sesame-sesame")
    crash = (
        "import os, sys; print('x' * 100_000, file=sys.stderr);"
        " sys.exit(f'no license\\u202e for {os.environ[\"KEY\"]}\\n\\nsee the manual')"
    )
    broken = {"command": sys.executable, "args": ["-c", crash], "env": {"KEY": "env:WEATHER_KEY"}}
    await tool_results(
        mesh,
        keys,
        tmp_path,
        FORECAST,
        mcp_servers=("broken", "weather"),
        mcp_config_file=config(tmp_path, broken=broken, weather=stdio()),
        log_level="warning",
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if "mcp_server_unavailable" in line]
    [event] = map(json.loads, lines)
    assert event["stderr"] == f"{'x' * 200} | no license\ufffd for [$redacted:mcp_secret] | see the manual"
    assert "license" not in mesh.prompts[0].system_prompt, "a server writes nothing into the prompt"


async def test_a_server_that_dies_is_restarted_a_limited_number_of_times(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    die = ("mcp__weather__die", "{}")
    file = config(tmp_path, weather=stdio(env={"NOTES": str(notes)}))
    results = await tool_results(
        mesh, keys, tmp_path, die, FORECAST, die, die, die, FORECAST, mcp_config_file=file
    )
    lost = "MCP_SERVER_LOST: the server ended during the call; it may or may not have been done"
    assert [text(result) for result in results] == [
        lost,
        "1 fine day(s) in Oslo",
        lost,
        lost,
        lost,
        "MCP_SERVER_UNAVAILABLE: the call was not made:"
        " it ended 4 times, and is not started again in this run",
    ]
    assert notes.read_text().count("started") == 4


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("tool", ["forecast", "order_rain"])
async def test_a_call_is_repeated_only_if_its_servers_annotations_are_trusted(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path, tool: str, trusted: bool
) -> None:
    notes = tmp_path / "notes"
    name = f"mcp__weather__{tool}"
    mesh.write(calling(("c0", name, '{"city": "Oslo"}')), epoch=1)
    server: dict[str, Any] = stdio(env={"NOTES": str(notes)}, trust_annotations=trusted)
    [result] = await tool_results(
        mesh, keys, tmp_path, epoch=2, mcp_config_file=config(tmp_path, weather=server)
    )
    is_made = trusted and tool == "forecast"
    assert text(result).startswith("1 fine day(s)" if is_made else "OUTCOME_UNKNOWN")
    assert "ordered" not in notes.read_text()
    declared = {one.name: one.is_idempotent for one in mesh.prompts[0].tools}
    assert declared["mcp__weather__forecast"] is trusted
    assert declared["mcp__weather__order_rain"] is False
    assert list(mesh.prompts[0].partial_execution.tool_names) == [name]


async def test_an_mcp_call_with_a_masked_secret_is_not_repeated(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(calling(("c0", "mcp__weather__forecast", '{"city": "[$redacted:provider_key]"}')), epoch=1)
    file = config(tmp_path, weather=stdio(trust_annotations=True))
    [result] = await tool_results(mesh, keys, tmp_path, epoch=2, mcp_config_file=file)
    assert text(result).startswith("OUTCOME_UNKNOWN")


async def test_a_call_of_a_removed_server_has_an_unknown_outcome(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    mesh.write(calling(("c0", "mcp__weather__order_rain", '{"city": "Oslo"}')), epoch=1)
    file = config(tmp_path, weather={"command": "no-such-command-anywhere"})
    [result] = await tool_results(mesh, keys, tmp_path, epoch=2, mcp_config_file=file)
    assert text(result).startswith("OUTCOME_UNKNOWN")
    assert list(mesh.prompts[0].partial_execution.tool_names) == ["mcp__weather__order_rain"]
    assert mesh.finalized is not None
    assert mesh.finalized.has_final_effects


async def test_concurrent_runs_have_separate_processes(
    mesh: ScriptedMesh, keys: Path, tmp_path: Path
) -> None:
    other = ScriptedMesh(mesh.minter)
    other.write(text_message(message_pb2.ROLE_USER, "Do it."), epoch=0)
    file = config(tmp_path, weather=stdio())
    (tmp_path / "other").mkdir()
    [[first], [second]] = await asyncio.gather(
        tool_results(mesh, keys, tmp_path, PIDS, mcp_config_file=file),
        tool_results(other, keys, tmp_path / "other", PIDS, mcp_config_file=file),
    )
    assert not set(pids_in(first)) & set(pids_in(second))
    await eventually(lambda: are_gone(pids_in(first) + pids_in(second)))
