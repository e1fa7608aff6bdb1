"""`spawn --wait` and `watch` print what a model says while it says it, exactly as it is kept."""

import asyncio
import json
import os
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_client import Mesh, Session, connect
from spawnmesh_devstack.models import SCRIPTED_SLOW
from spawnmesh_devstack.stack import Stack

from tests.support.commands import SCRIPT, Commands
from tests.support.waiting import eventually

STATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:")
Run = Callable[..., Coroutine[Any, Any, tuple[int, str, str]]]
"""Run a command and return exit code, output and errors."""


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[Mesh]:
    """Connect as a client of a tenant for this test alone."""
    async with connect(targets={"session": stack.targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant)
    targets = {name: stack.targets[name] for name in ("session", "transcript")}
    async with connect(targets=targets, token=stack.client_token(tenant)) as client:
        yield client


@pytest.fixture
def run(commands: Commands, stack: Stack, tenant: str) -> Run:
    return partial(commands.run, "--data", str(stack.data_dir), "--tenant", tenant, env=os.environ)


async def sessions_of(mesh: Mesh) -> list[Session]:
    return [one async for one in mesh.sessions()]


async def answers_of(session: Session) -> list[str]:
    return [one.text async for one in session.transcript() if one.role == "ASSISTANT"]


def said(printed: str) -> str:
    """Return what was printed without the states, which can come within a text, and in one line."""
    return "".join(line for line in printed.splitlines() if not STATE.match(line))


async def test_text_of_a_spawn_and_of_a_watch_is_that_of_the_entry(mesh: Mesh, run: Run) -> None:
    code, spawned, errors = await run("spawn", "Say hello.", "--wait")
    assert code == 0, errors
    (session,) = await sessions_of(mesh)
    (answer,) = await answers_of(session)
    assert said(spawned).endswith(answer)
    assert said(spawned).count(answer) == 1
    code, watched, errors = await run("watch", session.session_id)
    assert code == 0, errors
    assert watched.splitlines()[0] == f"{session.session_id}  trace {session.trace_id}"
    assert answer in said(watched)
    assert watched.rstrip().endswith("CLOSED")


async def test_text_is_printed_while_the_model_speaks(
    mesh: Mesh, run: Run, stack: Stack, tenant: str
) -> None:
    task = ("Count as far as you can.", "--model", SCRIPTED_SLOW, "--open", "--wait")
    spawning = asyncio.create_task(run("spawn", *task))
    found: list[Session] = await eventually(partial(sessions_of, mesh))
    (session,) = found
    watching = asyncio.create_task(run("watch", session.session_id))
    options = ("--data", str(stack.data_dir), "--tenant", tenant)
    program = await asyncio.create_subprocess_exec(
        SCRIPT, *options, "watch", session.session_id, "--json", stdout=PIPE
    )
    assert program.stdout is not None
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(90):
        while sum("text" in line.get("draft_delta", {}) for line in lines) < 3:
            lines.append(json.loads(await program.stdout.readline()))
    await session.interrupt()
    code, spawned, errors = await spawning
    assert (code, "the run ended as INTERRUPTED" in errors) == (1, True), errors
    (answer,) = await answers_of(session)
    await session.kill()
    code, watched, errors = await watching
    rest, _ = await program.communicate()
    assert (code, program.returncode) == (0, 0), errors
    lines += [json.loads(line) for line in rest.splitlines()]
    deltas = [line["draft_delta"] for line in lines if "draft_delta" in line]
    assert "".join(delta.get("text", "") for delta in deltas) == answer
    thought = "".join(delta.get("thinking", "") for delta in deltas)
    appended = [line["entry_appended"] for line in lines if "entry_appended" in line]
    (completing,) = [one["entry"]["body"]["message"] for one in appended if one["completes_draft"]]
    assert completing["content"] == [
        {"thinking": {"text": thought, "signature": ""}},
        {"text": {"text": answer}},
    ]
    for printed in (spawned, watched):
        assert f"thinking: {thought}{answer[:5]}" in said(printed)
        assert said(printed).count(answer) == 1
        assert printed.count("RUN  INTERRUPTED") == 1
