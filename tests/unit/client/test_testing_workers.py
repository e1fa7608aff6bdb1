"""Workers on the mesh in memory, as the tests of a program use it: tools, people, budgets, steering."""

import asyncio
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_USER
from spawnmesh_client import (
    Agent,
    ApprovalPolicy,
    Attachment,
    Budget,
    Entry,
    Reason,
    Role,
    RunFailed,
    RunState,
    Session,
)
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.testing import FakeMesh
from spawnmesh_client.tools import CurrentCall, ToolError, tool
from spawnmesh_client.worker import Worker

from tests.support.waiting import eventually

SECONDS = 60.0


def forecast(city: str) -> str:
    """Return the weather of a city."""
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return f"sunny in {city}"


def broken() -> None:
    """Fail."""
    raise KeyError("secret")


def worker_of(mesh: FakeMesh, *tools: Any, **options: Any) -> Worker:
    """Return a worker whose agent `clerk` answers with these tools."""
    worker = Worker(mesh)

    @worker.agent("clerk")
    async def answer(ctx: RunContext) -> str:
        return (await ctx.run_tools(tools, **options)).text

    return worker


async def spawned(mesh: FakeMesh, task: str = "Work.", **options: Any) -> Session:
    return await mesh.spawn(task, agent="clerk", runtime="EXTERNAL", **options)


@pytest.fixture
async def mesh() -> FakeMesh:
    mesh = FakeMesh()
    await mesh.agents.put(Agent("clerk", system_prompt="You help."))
    return mesh


async def said(session: Session) -> list[tuple[str | None, str, bool]]:
    """Return the messages and the notes behind the task."""
    entries = [one async for one in session.transcript()]
    return [_shown(one) for one in entries[2:] if one.role is not None or one.kind == "NOTE"]


def _shown(entry: Entry) -> tuple[str | None, str, bool]:
    calls = ",".join(call.name for call in entry.tool_calls)
    return (str(entry.role) if entry.role else None), entry.text or calls, entry.is_error


async def test_model_calls_tools_until_it_answers(mesh: FakeMesh) -> None:
    mesh.calls(("forecast", {"city": "Paris"}), ("forecast", {"city": "Atlantis"}), text="I look.")
    mesh.calls(("forecast", {}), ("broken", {}), ("magic", {}))
    mesh.says("It is sunny.")
    heard: list[str] = []
    async with mesh.working(worker_of(mesh, forecast, broken, on_text=heard.append)):
        session = await spawned(mesh)
        result = await session.result(timeout=SECONDS)
    assert (result.text, "".join(heard)) == ("It is sunny.", "I look.It is sunny.")
    assert await said(session) == [
        ("ASSISTANT", "I look.", False),
        ("TOOL_RESULT", "sunny in Paris", False),
        ("TOOL_RESULT", "TOOL_ERROR: there is no such city", True),
        ("ASSISTANT", "forecast,broken,magic", False),
        ("TOOL_RESULT", "INVALID_ARGUMENTS: city: is missing", True),
        (
            "TOOL_RESULT",
            "TOOL_FAILED: the tool failed by a defect of its own; the same call again will not help", True,
        ),
        ("TOOL_RESULT", "UNKNOWN_TOOL: there is no such tool; yours are: forecast, broken", True),
        ("ASSISTANT", "It is sunny.", False),
    ]  # fmt: skip
    first, _, last = mesh.prompts
    assert (first.system_prompt, [one.name for one in first.tools]) == ("You help.", ["forecast", "broken"])
    assert list(last.partial_execution.tool_names) == ["forecast", "broken"]
    assert result.usage.output_token_count == 5


async def test_answer_that_the_function_changes_is_another_entry(mesh: FakeMesh) -> None:
    worker = Worker(mesh)

    @worker.agent("clerk")
    async def answer(ctx: RunContext) -> str:
        await ctx.append("I begin.")
        first = await ctx.run_tools([])
        await ctx.append("Shorter.", role=ROLE_USER)
        return f"{first.text} {(await ctx.run_tools([])).text}!"

    mesh.says("one", "two")
    async with mesh.working(worker):
        session = await spawned(mesh)
        assert (await session.result(timeout=SECONDS)).text == "one two!"
    assert [text for _, text, _ in await said(session)] == ["I begin.", "one", "Shorter.", "two", "one two!"]


async def test_run_without_an_answer_within_its_turns_fails(mesh: FakeMesh) -> None:
    for _ in range(3):
        mesh.calls(("forecast", {"city": "Paris"}))
    async with mesh.working(worker_of(mesh, forecast, max_turn_count=2)):
        session = await spawned(mesh)
        with pytest.raises(RunFailed) as failed:
            await session.result(timeout=SECONDS)
    assert (failed.value.reason, len(mesh.prompts)) == (Reason.TURN_LIMIT_EXCEEDED, 2)


async def test_urgent_message_cuts_the_tool_short_and_is_read_next(mesh: FakeMesh) -> None:
    began = asyncio.Event()

    @tool(idempotent=True)
    async def wait() -> None:
        """Wait."""
        began.set()
        await asyncio.Event().wait()

    mesh.calls(("wait", {}), ("wait", {}))
    mesh.says(lambda newest: f"You said: {newest}")
    async with mesh.working(worker_of(mesh, wait)):
        session = await spawned(mesh)
        await began.wait()
        await session.interrupt("In French.")
        assert (await session.result(timeout=SECONDS)).text == "You said: In French."
    cut, not_made = [text for role, text, _ in await said(session) if role == "TOOL_RESULT"]
    assert cut.startswith("INTERRUPTED: you were interrupted during this call; make it again")
    assert not_made == "INTERRUPTED: you were interrupted before this call, and it was not made"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_interrupted_run_keeps_the_results_of_its_calls(mesh: FakeMesh, idempotent: bool) -> None:
    began = asyncio.Event()

    @tool(idempotent=idempotent)
    async def wait() -> None:
        """Wait."""
        began.set()
        await asyncio.Event().wait()

    mesh.calls(("forecast", {"city": "Paris"}), ("wait", {}), ("forecast", {"city": "Rome"}))
    async with mesh.working(worker_of(mesh, wait, forecast)):
        session = await spawned(mesh)
        await began.wait()
        await session.interrupt()
        with pytest.raises(RunFailed, match="INTERRUPTED"):
            await session.result(timeout=SECONDS)
    first, second, third = [text for role, text, _ in await said(session) if role == "TOOL_RESULT"]
    assert first == "sunny in Paris"
    assert ("make it again" in second) == idempotent
    assert "it was not made" in third


async def test_approved_call_is_made_as_a_person_edited_it(mesh: FakeMesh) -> None:
    await mesh.agents.put(Agent("clerk", approval=ApprovalPolicy(tools=("fore*",))))
    mesh.calls(("forecast", {"city": "Paris"}), ("forecast", {"city": "Rome"}))
    mesh.says("It is sunny.")
    async with mesh.working(worker_of(mesh, forecast)):
        session = await spawned(mesh)
        for decide in (
            lambda one: mesh.approvals.approve(one.approval_id, {"city": "Lyon"}),
            lambda one: mesh.approvals.deny(one.approval_id, "Not today."),
        ):
            approval = await eventually(lambda: pending(mesh))
            assert (approval.tool_call.tool_name, approval.reason) == (
                "forecast",
                "the agent's policy names fore*",
            )
            assert (await session.refresh()).latest_run.state is RunState.WAITING_APPROVAL  # type: ignore[union-attr]
            await decide(approval)
        assert (await session.result(timeout=SECONDS)).text == "It is sunny."
    results = [text for role, text, _ in await said(session) if role == "TOOL_RESULT"]
    assert results == ["sunny in Lyon", "DENIED: Not today."]
    assert "approvedBy" in mesh.prompts[1].messages[-3].content[0].tool_call.block_json


async def pending(mesh: FakeMesh) -> Any:
    return next(iter([one async for one in mesh.approvals.list(state="PENDING")]), None)


async def test_run_waits_for_its_budget_and_goes_on_behind_its_calls(mesh: FakeMesh) -> None:
    calls: list[str] = []

    def note(text: str) -> None:
        """Note a text."""
        calls.append(text)

    mesh.calls(("note", {"text": "once"}))
    mesh.says("Noted.")
    async with mesh.working(worker_of(mesh, note)):
        session = await spawned(mesh, budget=Budget(calls=1))
        await eventually(lambda: is_waiting(session))
        await session.set_budget(calls=5)
        assert (await session.result(timeout=SECONDS)).text == "Noted."
    assert calls == ["once"]


async def is_waiting(session: Session) -> bool:
    run = (await session.refresh()).latest_run
    return run is not None and run.state is RunState.WAITING_BUDGET


async def test_worker_that_stops_leaves_its_call_to_the_next_one(mesh: FakeMesh) -> None:
    began, ids = asyncio.Event(), []

    async def _wait(call: CurrentCall) -> str:
        """Wait."""
        ids.append(call.request_id)
        if len(ids) == 1:
            began.set()
            await asyncio.Event().wait()
        return "waited"

    once, again = tool(_wait, name="once"), tool(_wait, name="again", idempotent=True)
    mesh.calls(("again", {}), ("once", {}))
    mesh.says("Done.")
    session = await spawned(mesh)
    async with mesh.working(worker_of(mesh, once, again)):
        await began.wait()
    async with mesh.working(worker_of(mesh, once, again)):
        assert (await session.result(timeout=SECONDS)).text == "Done."
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2], "the first call was made again, with the same request_id"
    began.clear()
    ids.clear()
    mesh.calls(("once", {}))
    mesh.says("Unknown.")
    session = await spawned(mesh)
    async with mesh.working(worker_of(mesh, once, again)):
        await began.wait()
    async with mesh.working(worker_of(mesh, once, again)):
        assert (await session.result(timeout=SECONDS)).text == "Unknown."
    assert len(ids) == 1
    assert [text for role, text, _ in await said(session) if role == "TOOL_RESULT"] == [
        "OUTCOME_UNKNOWN: the worker was replaced during the call; it may or may not have been done"
    ]


async def test_tool_spawns_once_and_publishes_and_no_content_of_a_file_is_kept(mesh: FakeMesh) -> None:
    async def sessions_spawn(task: str, attachments: list[dict[str, str]], call: CurrentCall) -> str:
        """Let another agent work."""
        files = [Attachment(one["name"], one["content"].encode()) for one in attachments]
        child = await call.run.spawn(task, attachments=files, request_id=call.request_id)
        await call.run.publish(Attachment("note.md", b"# Note"))
        return (await child.result(timeout=SECONDS)).text

    mesh.calls(("sessions_spawn", {"task": "Sum up.", "attachments": [{"name": "a", "content": "secret"}]}))
    mesh.says("It did.")
    mesh.answers("summed up")
    async with mesh.working(worker_of(mesh, sessions_spawn)):
        session = await spawned(mesh)
        assert (await session.result(timeout=SECONDS)).text == "It did."
    assert [(one.task, one.files) for one in mesh.spawned][1:] == [("Sum up.", {"a": b"secret"})]
    assert [one.parent_session_id async for one in session.children()] == [session.session_id]
    assert [file.name for one in [o async for o in session.outputs()] for file in one.files] == ["note.md"]
    (call,) = [call async for entry in session.transcript() for call in entry.tool_calls]
    assert "secret" not in call.block_json
    assert '"$redacted"' in call.block_json


async def test_messages_and_kills_reach_a_worker(mesh: FakeMesh) -> None:
    worker, began, cancelled = Worker(mesh), asyncio.Event(), asyncio.Event()

    @worker.agent("clerk")
    async def answer(ctx: RunContext) -> str:
        if ctx.task == "Wait.":
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        return ctx.task.upper()

    async with mesh.working(worker):
        session = await spawned(mesh, "one", mode="SESSION")
        assert (await session.result(timeout=SECONDS)).text == "ONE"
        await session.send("two")
        assert (await session.result(timeout=SECONDS)).text == "TWO"
        await session.send("Wait.")
        await began.wait()
        await session.kill()
        await cancelled.wait()
    roles = [entry.role async for entry in session.transcript() if entry.role is not None]
    assert roles == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT, Role.USER]


async def test_sessions_for_other_runtimes_run_as_scripted_beside_a_worker(mesh: FakeMesh) -> None:
    mesh.answers("scripted")
    async with mesh.working(worker_of(mesh)):
        assert (await mesh.run("Work.", timeout=SECONDS)).text == "scripted"
