"""The programs in examples/ work unchanged against a mesh."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.mesh.shell import shell


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
