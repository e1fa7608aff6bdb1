"""The programs in examples/ work unchanged against a mesh."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.mesh.shell import ROOT, shell
from tests.support.transcript.dialects import claude, file_of

FRAMEWORKS = {"PYTHONPATH": str(ROOT / "build" / "examples")}
"""The environment of the examples that use frameworks of others. `make examples` installs them."""


@pytest.fixture
async def tenant(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """Create a tenant and return the environment of its programs."""
    name = f"t-{uuid4().hex[:12]}"
    await shell(f"spawnmesh tenant create {name}", stack, tmp_path)
    return {"SPAWNMESH_TENANT": name, "SPAWNMESH_TOKEN": stack.client_token(name)}


async def run(script: str, stack: Stack, tmp_path: Path, tenant: dict[str, Any]) -> str:
    return await shell(script, stack, tmp_path, **tenant)


async def test_files_are_spawned_and_the_answer_is_printed(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    printed = await run(
        f"python examples/spawn_with_files.py 'What is in the file?' {tmp_path / 'a.txt'}",
        stack,
        tmp_path,
        tenant,
    )
    assert "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" in printed, (
        "the answer depends on the bytes"
    )
    assert "tokens written" in printed


async def test_refusal_is_printed_with_its_reason(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    script = "python examples/spawn_with_files.py ' ' || true"
    assert "the mesh refused: INVALID_REQUEST" in await run(script, stack, tmp_path, tenant)


async def test_events_are_printed_and_a_cursor_continues_behind_one(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    spawn = "spawnmesh spawn 'Say hello.' --wait --json | python -c 'import json, sys;"
    script = f"""
        id=$({spawn} print(json.load(sys.stdin)["session_id"])')
        python examples/watch.py $id
        echo --
        python examples/watch.py $id 2
    """
    all_events, rest = (await run(script, stack, tmp_path, tenant)).split("--\n")
    lines = all_events.splitlines()
    assert lines[0].startswith("1 PROVISIONING")
    assert lines[-1].split()[1] == "CLOSED"
    assert any(line.endswith("RUN SUCCEEDED") for line in lines)
    assert rest.splitlines() == lines[2:]


async def test_session_is_steered_and_its_transcript_read(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    printed = await run("python examples/steer.py 'Say hello.' 'Say it again.'", stack, tmp_path, tenant)
    entries = re.findall(r"^ +\d+ (USER|ASSISTANT): (.*)$", printed, re.MULTILINE)
    assert [role for role, _ in entries] == ["USER", "ASSISTANT", "USER", "ASSISTANT"]
    assert "Say it again." in entries[2][1]


async def test_run_is_steered_while_its_model_speaks(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    script = "python examples/steer_run.py 'Count as far as you can.' 'Stop counting, and greet me.'"
    printed = await run(script, stack, tmp_path, tenant)
    print(printed)
    assert "the same run reads the message" in printed
    said = re.findall(r"^ +\d+ (USER|ASSISTANT): '(.*)'$", printed, re.MULTILINE)
    assert said[0] == ("USER", "Count as far as you can.")
    assert said[1][0] == "ASSISTANT"
    assert said[1][1].startswith("1 2 3 4 5"), "what it had said is kept"
    answer = ("ASSISTANT", "You said: Stop counting, and greet me.")
    assert said[2:] == [("USER", "Stop counting, and greet me."), answer]


async def test_plugin_has_an_answer_revised(stack: Stack, tmp_path: Path, tenant: dict[str, str]) -> None:
    (port,) = free_ports(1)
    arguments = f"127.0.0.1:{port} {stack.keys / 'jwks.json'} {tenant['SPAWNMESH_TENANT']} 'Say hello.'"
    printed = await run(f"python examples/plugin.py {arguments}", stack, tmp_path, tenant)
    assert "revisions: 1\n" in printed
    assert "-- the clerk" in printed, "the scripted model repeats what the plugin wants"
    assert [line for line in printed.splitlines() if line.startswith("BEFORE_AGENT_FINALIZE")] == [
        "BEFORE_AGENT_FINALIZE: CONTINUE",
        "BEFORE_AGENT_FINALIZE: REVISE",
    ]


async def test_worker_answers_with_its_functions(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    printed = await answered_by("worker.py", ("editor", "counter"), stack, tmp_path, tenant)
    text, words = printed.splitlines()
    assert text.startswith("I am the scripted model")
    assert words == f"{len(text.split())} words"


async def test_model_works_with_the_tools_of_a_worker(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    calls = ['stock {"item": "chalk"}', 'stock {"item": "ink"}', 'order {"item": "ink", "count": 3}']
    printed = await answered_by(
        "tools_worker.py",
        ("clerk",),
        stack,
        tmp_path,
        tenant,
        task="\n".join(calls),
        profile={"system_prompt": f"You are the {CALLER}."},
    )
    assert printed == "3 x ink are ordered"
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert "order-ink.txt" in await run(f"spawnmesh outputs {ended['session_id']}", stack, tmp_path, tenant)


async def test_graph_of_langgraph_answers_with_a_model_and_a_child(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    printed = await answered_by("langgraph_worker.py", ("grapher",), stack, tmp_path, tenant | FRAMEWORKS)
    count, draft, review = printed.splitlines()
    assert (count, draft.startswith("I am the scripted model")) == ("1 messages", True)
    assert draft.endswith("You said: Say hello.")
    assert review.endswith(f"You said: Review this: {draft}"), "the child has read the draft"


async def test_agents_of_the_openai_sdk_answer_with_the_models_of_the_mesh(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    printed = await answered_by("openai_agents_worker.py", ("sdk",), stack, tmp_path, tenant | FRAMEWORKS)
    written, judged = printed.splitlines()
    assert written.endswith("You said: Say hello.")
    assert judged.endswith(f"You said: {written}"), "the second agent has read the answer of the first"


async def test_transcript_is_imported_and_continued(
    stack: Stack, tmp_path: Path, tenant: dict[str, str]
) -> None:
    said = [{"type": "text", "text": "b.txt is left to do."}]
    lines = [claude("user", "u1", None, "Write a.txt."), claude("assistant", "a1", "u1", said)]
    file = tmp_path / "session.jsonl"
    file.write_bytes(file_of(lines))
    script = f"python examples/import_transcript.py {file} 'Which file is left?'"
    printed = await run(script, stack, tmp_path, tenant)
    assert re.match(r"ses_\w{26}: \d entries\n", printed)
    text = b"USER: Write a.txt.\n\nASSISTANT: b.txt is left to do."
    assert hashlib.sha256(text).hexdigest() in printed, "the answer depends on the earlier work"


async def answered_by(
    program: str,
    agents: Sequence[str],
    stack: Stack,
    tmp_path: Path,
    tenant: dict[str, str],
    *,
    task: str = "Say hello.",
    profile: dict[str, Any] | None = None,
) -> str:
    """Run the worker, and return its answer to the first of its agents. A signal ends it."""
    name = tenant["SPAWNMESH_TENANT"]
    more = {"spawnable_agents": ["*"], **(profile or {})}
    profiles = [json.dumps({"agent_id": agent, **more}) for agent in agents]
    made = "\n".join(f"echo '{one}' | spawnmesh agent put - >&2" for one in profiles)
    chosen = " ".join(f"--agent {agent}" for agent in agents)
    minted = f"env -u SPAWNMESH_TOKEN spawnmesh token --runner --tenant {name} {chosen}"
    script = f"""
        {made}
        export RUNNER_TOKEN=$({minted})
        python examples/{program} >&2 &
        trap "kill -TERM $!" EXIT
        spawnmesh spawn '{task}' --agent {agents[0]} --external --wait --json > {tmp_path}/ended.json
        trap - EXIT
        kill -TERM $!
        wait $!
    """
    await run(script, stack, tmp_path, tenant)
    ended = json.loads((tmp_path / "ended.json").read_text())
    return str(ended["latest_run"]["result_text"])
