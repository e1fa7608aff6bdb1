"""Models work with the tools of a worker, on a real mesh and on the one in memory."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_client import (
    Agent,
    ApprovalPolicy,
    Attachment,
    EntryAppended,
    Mesh,
    Plugin,
    RunFailed,
    Session,
    TextDelta,
    ToolCallDelta,
    connect,
)
from spawnmesh_client.resource_views import Grant, HookKind
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.testing import FakeMesh
from spawnmesh_client.tools import CurrentCall, ToolError, tool
from spawnmesh_client.worker import Worker
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.client.tool_worker import SERVICES, runner_token, working
from tests.support.hook.plugin_process import serving
from tests.support.mesh.both_meshes import Record, real, tenant
from tests.support.waiting import eventually

__all__ = ["real", "tenant"]

pytestmark = pytest.mark.timeout(420)

SECONDS = 240.0
Call = tuple[str, dict[str, Any]]


def forecast(city: str, days: int = 1) -> dict[str, Any]:
    """Return the weather of a city."""
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return {"city": city, "sunny": days}


async def sessions_spawn(task: str, attachments: list[dict[str, str]], call: CurrentCall) -> str:
    """Let another agent work on a task with files."""
    files = [Attachment(one["name"], one["content"].encode()) for one in attachments]
    child = await call.run.spawn(task, agent="default", attachments=files, request_id=call.request_id)
    return child.receipt.files[0].name if child.receipt is not None else ""


async def answer(ctx: RunContext) -> str:
    return (await ctx.run_tools([tool(forecast, idempotent=True), sessions_spawn])).text


@pytest.fixture
async def runner(stack: Stack, tenant: str, real: Mesh) -> AsyncIterator[Mesh]:
    """Connect to the tenant as a worker."""
    targets = {name: stack.targets[name] for name in SERVICES}
    async with connect(targets=targets, token=runner_token(stack, tenant)) as mesh:
        yield mesh


async def spawned(mesh: Mesh, *calls: Call, **agent: Any) -> Session:
    """Spawn an agent that makes the calls, one after the other, and reports the last result."""
    await mesh.agents.put(
        Agent(CALLER, system_prompt=f"You are the {CALLER}.", spawnable_agents=("*",), **agent)
    )
    if isinstance(mesh, FakeMesh):
        for call in calls:
            mesh.calls(call)
        mesh.says(lambda newest: newest)
    task = "\n".join(f"{name} {json.dumps(arguments)}" for name, arguments in calls)
    return await mesh.spawn(task, agent=CALLER, runtime="EXTERNAL")


async def record_of(session: Session) -> Record:
    """Return what the transcript and the events say, without ids and times."""
    entries = [
        (str(one.kind), str(one.role or ""), one.text, one.tool_name, one.is_error,
         [(call.name, json.loads(call.block_json)["arguments"]) for call in one.tool_calls])
        async for one in session.transcript()
    ]  # fmt: skip
    events = [(str(one.kind), str(one.run_state or "")) async for one in session.events()]
    return [entries, events]


async def both(real: Mesh, runner: Mesh, program: Callable[[Mesh], Awaitable[Record]]) -> Record:
    """Return the record of the program, which is the same on both meshes."""
    async with working(runner, answer):
        record = await program(real)
    fake = FakeMesh()
    worker = Worker(fake)
    worker.agent(CALLER)(answer)
    async with fake.working(worker):
        assert await program(fake) == record
    return record


async def test_calls_and_their_results_are_in_the_transcript(real: Mesh, runner: Mesh) -> None:
    async def program(mesh: Mesh) -> Record:
        session = await spawned(
            mesh,
            ("forecast", {"city": "Paris", "days": 2}),
            ("forecast", {"city": "Atlantis"}),
            ("forecast", {"town": "Paris"}),
            ("forecast", {"city": "Rome"}),
        )
        result = await session.result(timeout=SECONDS)
        return [result.text, await record_of(session)]

    text, (entries, events) = await both(real, runner, program)
    assert text == '{"city": "Rome", "sunny": 1}'
    assert [(role, error) for _, role, _, name, error, _ in entries if name] == [
        ("TOOL_RESULT", False), ("TOOL_RESULT", True), ("TOOL_RESULT", True), ("TOOL_RESULT", False),
    ]  # fmt: skip
    assert [state for _, state in events if state] == ["QUEUED", "RUNNING", "SUCCEEDED"]


async def test_person_decides_on_calls(real: Mesh, runner: Mesh) -> None:
    async def program(mesh: Mesh) -> Record:
        session = await spawned(
            mesh,
            ("forecast", {"city": "Paris"}),
            ("forecast", {"city": "Rome"}),
            approval=ApprovalPolicy(tools=("forecast",)),
        )
        shown: Record = []
        for city in ("Lyon", None):
            approval = await eventually(lambda: pending(mesh, session))
            shown.append((approval.tool_call.arguments, approval.reason))
            if city is None:
                await mesh.approvals.deny(approval.approval_id, "Not today.")
            else:
                await mesh.approvals.approve(approval.approval_id, {"city": city})
        result = await session.result(timeout=SECONDS)
        return [shown, result.text, await record_of(session)]

    shown, text, (entries, events) = await both(real, runner, program)
    assert shown[0] == ({"city": "Paris"}, "the agent's policy names forecast")
    assert text == "DENIED: Not today."
    assert [said for _, _, said, name, _, _ in entries if name] == ['{"city": "Lyon", "sunny": 1}', text]
    assert [state for _, state in events].count("WAITING_APPROVAL") == 2


async def pending(mesh: Mesh, session: Session) -> Any:
    waiting = mesh.approvals.list(state="PENDING", session_id=session.session_id)
    return next(iter([one async for one in waiting]), None)


async def test_no_content_of_a_file_in_a_spawn_is_kept(real: Mesh, runner: Mesh) -> None:
    async def program(mesh: Mesh) -> Record:
        file = {"name": "a.txt", "content": "words that nobody else may read"}
        session = await spawned(mesh, ("sessions_spawn", {"task": "Sum up.", "attachments": [file]}))
        result = await session.result(timeout=SECONDS)
        return [result.text, (await record_of(session))[0]]

    text, entries = await both(real, runner, program)
    assert text == "a.txt", "the tool has got the content"
    (call,) = [call for *_, calls in entries for call in calls]
    assert "$redacted" in str(call)
    assert "nobody" not in str([one for one in entries if one[1] != "USER"])


async def test_run_without_an_answer_within_its_turns_fails(real: Mesh, runner: Mesh) -> None:
    async def program(mesh: Mesh) -> Record:
        calls: list[Call] = [("forecast", {"city": str(number)}) for number in range(3)]
        session = await spawned(mesh, *calls, max_turn_count=2)
        with pytest.raises(RunFailed) as failed:
            await session.result(timeout=SECONDS)
        return [str(failed.value.reason), failed.value.message]

    assert await both(real, runner, program) == ["TURN_LIMIT_EXCEEDED", "no answer within 2 turns"]


async def test_watchers_see_answers_while_models_give_them(real: Mesh, runner: Mesh) -> None:
    async with working(runner, answer):
        session = await spawned(real, ("forecast", {"city": "Paris"}))
        events = [one async for one in session.live()]
    drafts = [one for one in events if isinstance(one, EntryAppended) and one.completes_draft]
    assert len(drafts) == 2
    assert any(isinstance(one, ToolCallDelta) for one in events)
    answered = "".join(one.text for one in events if isinstance(one, TextDelta))
    assert answered == drafts[-1].entry.text == '{"city": "Paris", "sunny": 1}'


async def test_plugins_judge_the_calls(
    stack: Stack, tenant: str, real: Mesh, runner: Mesh, fork_server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "judge.py").write_text(
        "from spawnmesh_plugin import *\n\n\n@hook('before_tool_call')\ndef decide(event):\n"
        "    if 'Paris' in event.arguments_json:\n        return block('not there')\n"
        "    return rewrite({'city': 'Oslo'}) if 'Rome' in event.arguments_json else None\n"
    )
    names = ("session", "transcript", "hook")
    targets = {name: stack.targets[name] for name in names}
    async with (
        serving(fork_server, "judge", stack.keys, tenant, cwd=tmp_path) as endpoint,
        connect(targets=targets, token=stack.client_token(tenant)) as client,
        working(runner, answer),
    ):
        await client.plugins.register(
            Plugin("judge", endpoint, (HookKind.BEFORE_TOOL_CALL,), grants=(Grant.CONVERSATION_ACCESS,))
        )
        session = await spawned(client, *[("forecast", {"city": city}) for city in ("Paris", "Rome")])
        result = await session.result(timeout=SECONDS)
        results = [one.text async for one in session.transcript() if one.role == "TOOL_RESULT"]
    assert results == ["BLOCKED: not there", result.text]
    assert json.loads(result.text)["city"] == "Oslo"
