"""The commands `spawnmesh demo` and `spawnmesh up`, as a person types them."""

import asyncio
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from spawnmesh_devstack.demo_summary import show_summary
from spawnmesh_devstack.mesh_file import sole_use, write_mesh_file
from spawnmesh_devstack.scripted_model import build_app

from tests.support.waiting import eventually

SPAWNMESH = Path(sys.executable).parent / "spawnmesh"
SERVICES = {"session", "attachment-blob", "transcript", "model-router", "hook", "runner"}
EDGES = {
    ("session", "hook"),
    ("session", "attachment-blob"),
    ("session", "transcript"),
    ("session", "runner"),
    ("runner", "session"),
    ("runner", "transcript"),
    ("runner", "attachment-blob"),
    ("runner", "model-router"),
    ("hook", "demo-plugin"),
}


async def run(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    """Run the command in a bare environment; return exit code, output and errors."""
    home = os.environ.get("HOME", "/")
    # A mesh that somebody runs in this directory is none of a test's.
    env = {"PATH": os.environ["PATH"], "HOME": home, "SPAWNMESH_DATA": f"{home}/no-mesh", **environment}
    process = await asyncio.create_subprocess_exec(
        str(SPAWNMESH), *arguments, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


async def client(example: str, task: str, env: dict[str, str]) -> tuple[int | None, str, str]:
    """Run an example, which finds the mesh and its token by the files that the mesh wrote."""
    program = Path(__file__).resolve().parents[2] / "examples" / example
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, task, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.fixture(scope="module")
async def printed() -> tuple[str, str]:
    """Return the document, and what is printed for people beside it."""
    status, output, errors = await run("demo", "--json")
    assert status == 0, errors
    return output, errors


@pytest.fixture(scope="module")
def demo(printed: tuple[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed[0])
    return document


async def test_demo_ends_with_commands_that_work_as_they_are_printed(printed: tuple[str, str]) -> None:
    _, found, after = printed[1].partition("Next, in this directory:\n")
    assert found, printed[1]
    commands = re.findall(r"^  (\S.*?) +# ", after, re.MULTILINE)
    assert [command.split()[-1] for command in commands] == ["up"]
    for command in commands:
        done = await asyncio.create_subprocess_shell(
            f"{command} --help", env={"PATH": os.environ["PATH"]}, stdout=asyncio.subprocess.DEVNULL
        )
        assert await done.wait() == 0


def test_outcome_fits_one_screen(demo: dict[str, Any]) -> None:
    screen = Console(file=io.StringIO(), width=80)
    show_summary(screen, demo)
    lines = screen.file.getvalue().splitlines()
    assert len(lines) <= 24 - len(["", "Next", "--verbose", "up", "the tutorial", "the prompt"])
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "scripted/flaky answered 429, scripted/agent took over" in text
    assert f"{len(demo['checks'])} of {len(demo['checks'])} checks passed" in text
    assert demo["answer"].splitlines()[1] in text


def test_demo_passes_all_its_checks(demo: dict[str, Any]) -> None:
    assert [check["name"] for check in demo["checks"] if not check["passed"]] == []
    assert len(demo["checks"]) >= 15


def test_parent_child_and_grandchild_succeed(demo: dict[str, Any]) -> None:
    parent, child, grandchild = demo["sessions"]
    assert [session["run_state"] for session in demo["sessions"]] == ["SUCCEEDED"] * 3
    assert [session["depth"] for session in demo["sessions"]] == [0, 1, 2]
    assert child["parent_session_id"] == parent["session_id"]
    assert grandchild["parent_session_id"] == child["session_id"]
    assert {file["sha256"] for file in demo["receipt"]["files"]} < {
        file["sha256"] for file in child["attachments"]
    }


def test_one_trace_shows_every_service_and_the_calls_between_them(demo: dict[str, Any]) -> None:
    trace = demo["trace"]
    assert set(trace["services"]) >= SERVICES
    assert {tuple(edge) for edge in trace["edges"]} >= EDGES
    assert trace["orphan_spans"] == 0
    assert trace["trace_id"] == demo["receipt"]["trace_id"]


def test_one_model_fails_and_the_next_answers(demo: dict[str, Any]) -> None:
    first, second, *_ = demo["attempts"]
    assert (first["model"], first["reason"], first["http_status"]) == ("scripted/flaky", "RATE_LIMIT", 429)
    assert (second["model"], second["reason"]) == ("scripted/agent", "")


def test_a_person_approves_what_the_child_spawns(demo: dict[str, Any]) -> None:
    (approval,) = demo["approvals"]
    assert approval["session_id"] == demo["sessions"][1]["session_id"]
    assert (approval["tool"], approval["state"]) == ("sessions_spawn", "APPROVED")
    assert approval["decided_by"]


def test_the_family_waits_for_its_budget_until_a_person_raises_it(demo: dict[str, Any]) -> None:
    budget = demo["budget"]
    assert (budget["waits"], budget["changes"]) == (1, 1)
    assert budget["changed_by"]
    assert budget["calls"] >= sum(not attempt["reason"] for attempt in demo["attempts"]) > 1
    assert budget["tokens"] == budget["tokens_of_runs"] > 0
    assert budget["cost"] == budget["cost_of_runs"] > 0


def test_hook_requests_one_revision_and_is_notified_of_every_end(demo: dict[str, Any]) -> None:
    (revision,) = demo["revisions"]
    assert revision["session_id"] == demo["receipt"]["session_id"]
    assert [session["revision_count"] for session in demo["sessions"]] == [1, 0, 0]
    assert sorted(demo["heard_ends"]) == sorted(session["session_id"] for session in demo["sessions"])


def test_each_result_is_announced_once(demo: dict[str, Any]) -> None:
    announced = [(one["parent_session_id"], one["child_session_id"]) for one in demo["announced"]]
    pairs = [(session["parent_session_id"], session["session_id"]) for session in demo["sessions"][1:]]
    assert sorted(announced) == sorted(pairs)


def test_child_publishes_a_file_that_its_parent_and_a_client_read(demo: dict[str, Any]) -> None:
    (published,) = demo["published"]
    assert published["session_id"] == demo["sessions"][1]["session_id"]
    assert [published[step] for step in ("written", "fetched", "read")] == [True] * 3
    assert demo["kept"] == {"objects": 1, "rows": 4, "workspaces": 0, "processes": 0}


def test_nothing_is_left(demo: dict[str, Any]) -> None:
    assert demo["leftovers"] == {"objects": 0, "rows": 0, "workspaces": 0, "processes": 0}


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve a provider that is not part of the mesh; yield its base URL."""
    async with TestServer(app) as server:
        yield str(server.make_url("/v1"))


async def test_refused_key_ends_the_demo_with_one_line_that_does_not_show_it(tmp_path: Path) -> None:
    """With `--alone`, the mesh that is up, here one that does not answer, is not used."""

    async def refuse(_request: web.Request) -> web.Response:
        error = {
            "message": "Incorrect API key provided.",
            "type": "invalid_request_error",
            "code": "invalid_api_key",
        }
        return web.json_response({"error": error}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    async with serving(app) as url:
        with sole_use(tmp_path) as data:
            gone = {"session": "127.0.0.1:1"}
            write_mesh_file(
                data, targets=gone, gateway=None, console=None, keys=data, traces=data, otlp="", pids={}
            )
            provider = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-secret"}
            status, output, errors = await run("demo", "--alone", SPAWNMESH_DATA=str(data), **provider)

    assert status == 1
    last = errors.strip().splitlines()[-1]
    # The first candidate is over its rate limit and could answer later; the demo does not wait for it.
    assert last.startswith("error: no model answers: none of 2 candidates answered (")
    assert "AUTH" in last
    assert "sk-secret" not in output + errors
    shutil.rmtree(re.findall(r"the logs are in (\S+)/mesh/logs", output)[0])


async def test_busy_port_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, errors = await run("up", "--data", str(tmp_path / "data"), "--port", f"session={port}")

    assert status == 1
    assert errors.strip() == f"error: port {port} for session is in use by another process"


async def pages_of(link: str, session_id: str) -> tuple[str, str]:
    """Follow the link, which signs in, and return the page of the console to which it leads, and the
    page with the trace of the session, once it has the end of the run.
    """
    async with httpx2.AsyncClient(
        headers={"accept": "text/html"}, trust_env=False, follow_redirects=True
    ) as browser:
        page = await browser.get(link)

        async def complete() -> str:
            answer = await browser.get(page.url.join(f"/sessions/{session_id}/trace"))
            return answer.text if "FinalizeRun" in answer.text else ""

        return page.text, await eventually(complete)


async def test_up_is_ready_for_calls_with_the_given_model_and_stops_at_a_signal() -> None:
    # Not below pytest's directory, which each new run of pytest closes to the account of PostgreSQL.
    with tempfile.TemporaryDirectory(prefix="spawnmesh-up-") as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, "SPAWNMESH_DATA": str(Path(folder) / "data")}
        async with serving(build_app()) as url:
            process = await asyncio.create_subprocess_exec(
                *(str(SPAWNMESH), "up", "--model", "agent"),
                env={**env, "OPENAI_BASE_URL": url, "SPAWNMESH_COMMAND": "bin/spawnmesh"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert process.stdout is not None
            printed = ""
            async with asyncio.timeout(240):
                while "Ctrl-C stops" not in printed:
                    line = (await process.stdout.readline()).decode()
                    assert line, printed
                    printed += line
            mesh = json.loads((Path(folder) / "data" / "mesh.json").read_text())
            assert f"Agents think with agent, at {url}" in printed
            assert f"SPAWNMESH_DATA={folder}/data bin/spawnmesh spawn 'What is in the file?'" in printed
            assert mesh["gateway"] in printed
            assert "gateway" in mesh["pids"]
            by_gateway = {
                "SPAWNMESH_URL": f"http://{mesh['gateway']}",
                "SPAWNMESH_SIGNING_KEY_FILE": f"{mesh['keys']}/client.pem",
            }
            status, _, errors = await run("sessions", **env, **by_gateway)
            assert status == 0, errors
            status, output, errors = await run("spawn", "Say something.", "--wait", "--json", **env)
            assert status == 0, errors
            assert "scripted model" in output
            (link,) = re.findall(r"http://\S+/sign-in\?code=\S+", printed)
            _, trace = await pages_of(link, json.loads(output)["session_id"])
            assert "SpawnSession" in trace
            _, listed, _ = await run("router", "models", **env)
            assert "openai/agent (primary)" in listed

            status, output, errors = await run("demo", **env)
            assert status == 0, errors
            assert "Left behind" not in output
            link = output.strip().splitlines()[-1]
            page, trace = await pages_of(link, link.rpartition("/")[2])
            assert "job · Spawnmesh</title>" in page
            assert "invoke_agent counter" in trace
            (tenant_id,) = re.findall(r"to the tenant (\S+):", output)
            _, plugins, _ = await run("hooks", "list", "--json", **env, SPAWNMESH_TENANT=tenant_id)
            assert [one["paused"] for one in json.loads(plugins)["plugins"]] == [True]

            status, output, errors = await client("spawn_with_files.py", "Say something.", env)
            assert status == 0, errors
            assert "scripted model" in output

            process.send_signal(signal.SIGINT)
            rest = await process.stdout.read()
            assert await process.wait() == 0, rest
        assert not any(psutil.pid_exists(pid) for pid in mesh["pids"].values())
        assert not (Path(folder) / "data" / "mesh.json").exists()
