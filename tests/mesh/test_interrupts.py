"""People interrupt runs of a real mesh, while a model streams its answer."""

import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.spans import Span
from spawnmesh_devstack.models import SCRIPTED_SLOW
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.traces import orphans

from tests.support.waiting import eventually

OPEN = session_pb2.SESSION_MODE_SESSION
ENDED, SUCCEEDED = session_pb2.RUN_STATE_INTERRUPTED, session_pb2.RUN_STATE_SUCCEEDED
SPEAKS_FOR_SECONDS = 5.0
"""The model needs a part of it to begin, and speaks for 40 s."""


@pytest.fixture
async def mesh(stack: Stack) -> AsyncIterator[WireMesh]:
    """Connect as a client of a tenant for this test alone."""
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    targets = {name: stack.targets[name] for name in ("session", "transcript")}
    async with connect_wire(**targets, token=stack.client_token(tenant)) as client:
        yield client


async def counting(stack: Stack, mesh: WireMesh) -> session_pb2.Session:
    """Spawn an open session whose model speaks for long, and return once it speaks."""
    session = await mesh.spawn("Count as far as you can.", model=SCRIPTED_SLOW, mode=OPEN)
    await eventually(lambda: speaks(mesh, session.session_id))
    return session


async def speaks(mesh: WireMesh, session_id: str) -> bool:
    run = (await mesh.session(session_id)).latest_run
    since = run.start_time.ToMilliseconds() / 1000
    return run.state == session_pb2.RUN_STATE_RUNNING and time.time() > since + SPEAKS_FOR_SECONDS


async def entries_of(mesh: WireMesh, session_id: str) -> list[Entry]:
    return [entry async for entry in mesh.transcript(session_id)]


async def said_by(mesh: WireMesh, session_id: str) -> list[str]:
    """Return the texts of the transcript behind the task."""
    bodies = [entry.body for entry in await entries_of(mesh, session_id)]
    texts = [
        body.system_note.text or "".join(block.text.text for block in body.message.content) for body in bodies
    ]
    return list(filter(None, texts[texts.index("Count as far as you can.") + 1 :]))


async def test_interrupted_run_keeps_what_was_said_and_its_session_goes_on(
    stack: Stack, mesh: WireMesh
) -> None:
    session = await counting(stack, mesh)
    session_id = session.session_id
    await mesh.interrupt(session_id)
    waited = await mesh.wait(session_id, 60)
    run = waited.session.latest_run
    assert (waited.done, run.state, run.run_id) == (True, ENDED, session.latest_run.run_id)
    said, note = await said_by(mesh, session_id)
    assert said.startswith("1 2 3 4 5")
    assert note.startswith("You were interrupted here.")
    assert waited.session.state == session_pb2.SESSION_STATE_ACTIVE
    await mesh.send(session_id, "How far did you come?")
    answered = (await mesh.wait(session_id, 60)).session.latest_run
    assert (answered.state, answered.result_text) == (SUCCEEDED, "You said: How far did you come?")


async def test_text_of_an_interrupt_is_what_the_same_run_answers(stack: Stack, mesh: WireMesh) -> None:
    session = await counting(stack, mesh)
    steered = await mesh.interrupt(session.session_id, "Stop counting, and greet me.")
    assert steered.run.run_id == session.latest_run.run_id
    run = (await mesh.wait(session.session_id, 60)).session.latest_run
    assert (run.run_id, run.state) == (session.latest_run.run_id, SUCCEEDED)
    assert run.result_text == "You said: Stop counting, and greet me."
    said, _note, message, answer = await said_by(mesh, session.session_id)
    assert said.startswith("1 2 3 4 5")
    assert (message, answer) == ("Stop counting, and greet me.", run.result_text)


async def test_trace_of_an_interrupted_run_has_no_error_and_no_orphan(stack: Stack, mesh: WireMesh) -> None:
    session = await counting(stack, mesh)
    await mesh.interrupt(session.session_id)
    await mesh.wait(session.session_id, 60)

    def collected() -> list[Span] | None:
        spans = load_spans(stack.traces_file, session.trace_id)
        names = {span.name.split()[0] for span in spans}
        return spans if {"run", "invoke_agent"} <= names and not orphans(spans) else None

    spans = await eventually(collected)
    outer = [span for span in spans if span.name.startswith(("run ", "invoke_agent"))]
    assert len(outer) == 2
    assert not [span.name for span in outer if span.status == "error"]


async def test_runner_that_is_killed_before_it_could_stop_leaves_the_end_to_the_next(
    stack: Stack, mesh: WireMesh
) -> None:
    session = await counting(stack, mesh)
    runner = stack.processes["runner"]
    runner.pause()
    asked = await mesh.interrupt(session.session_id)
    assert asked.run.HasField("interrupt_time")
    await runner.kill()
    await stack.restart("runner")
    run = (await mesh.wait(session.session_id, 60)).session.latest_run
    assert (run.state, run.run_id) == (ENDED, session.latest_run.run_id)
    assert await said_by(mesh, session.session_id) == [], "no runner worked on it again"
