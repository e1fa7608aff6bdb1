"""The turns of a worker with tools are interrupted, wait for budgets, and move to another worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from spawnmesh_client import Agent, Budget, DraftRetracted, Mesh, RunFailed, Session, TextDelta, connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.tools import CurrentCall, tool
from spawnmesh_devstack.models import SCRIPTED_SLOW
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack

from tests.support.client.tool_worker import SERVICES, runner_token, working
from tests.support.mesh.both_meshes import real, tenant
from tests.support.waiting import eventually

__all__ = ["real", "tenant"]

pytestmark = pytest.mark.timeout(420)

SECONDS = 240.0


@pytest.fixture
async def runner(stack: Stack, tenant: str, real: Mesh) -> AsyncIterator[Mesh]:
    """Connect to the tenant as a worker."""
    targets = {name: stack.targets[name] for name in SERVICES}
    async with connect(targets=targets, token=runner_token(stack, tenant)) as mesh:
        yield mesh


async def spawned(
    mesh: Mesh, *calls: str, system_prompt: str = f"You are the {CALLER}.", **more: Any
) -> Session:
    """Spawn an agent that makes the calls, one after the other, without arguments."""
    await mesh.agents.put(Agent(CALLER, system_prompt=system_prompt))
    task = "\n".join(f"{name} {{}}" for name in calls) or "Count as far as you can."
    return await mesh.spawn(task, agent=CALLER, runtime="EXTERNAL", **more)


async def said(session: Session) -> list[str]:
    """Return the texts behind the task."""
    texts = [(one.role, one.text) async for one in session.transcript() if one.role or one.kind == "NOTE"]
    return [text for role, text in texts[texts.index(next(one for one in texts if one[0] == "USER")) + 1 :]]


async def counting(session: Session) -> None:
    """Return once the model has said a part of its answer."""
    text = ""
    async for event in session.live():
        match event:
            case TextDelta():
                text += event.text
            case DraftRetracted():
                text = ""
        if len(text) > 10:
            return


def looped(*tools: Callable[..., Any]) -> Callable[[RunContext], Any]:
    async def answer(ctx: RunContext) -> str:
        return (await ctx.run_tools(tools)).text

    return answer


async def test_model_that_is_interrupted_by_a_message_keeps_what_it_said(real: Mesh, runner: Mesh) -> None:
    async with working(runner, looped()):
        session = await spawned(real, system_prompt="", model=SCRIPTED_SLOW)
        await counting(session)
        await session.interrupt("Stop counting, and greet me.")
        result = await session.result(timeout=SECONDS)
    first, note, message, answer = await said(session)
    assert first.startswith("1 2 3 4 5")
    assert note.startswith("You were interrupted here.")
    assert [message, answer] == ["Stop counting, and greet me.", result.text]


async def test_model_that_is_stopped_keeps_what_it_said(real: Mesh, runner: Mesh) -> None:
    async with working(runner, looped()):
        session = await spawned(real, system_prompt="", model=SCRIPTED_SLOW)
        await counting(session)
        await session.interrupt()
        with pytest.raises(RunFailed, match="INTERRUPTED"):
            await session.result(timeout=SECONDS)
    said_before, note = await said(session)
    assert said_before.startswith("1 2 3 4 5")
    assert note.startswith("You were interrupted here.")


async def test_tool_that_is_interrupted_has_a_result(real: Mesh, runner: Mesh) -> None:
    began = asyncio.Event()

    async def wait() -> None:
        """Wait."""
        began.set()
        await asyncio.Event().wait()

    async with working(runner, looped(wait)):
        session = await spawned(real, "wait")
        await began.wait()
        await session.interrupt()
        with pytest.raises(RunFailed, match="INTERRUPTED"):
            await session.result(timeout=SECONDS)
    _, outcome = await said(session)
    assert outcome.startswith("INTERRUPTED: you were interrupted during this call, and it may or may not")


async def test_run_waits_for_its_budget_between_two_turns(real: Mesh, runner: Mesh) -> None:
    made: list[str] = []

    def note() -> int:
        """Make a note."""
        made.append("note")
        return len(made)

    async with working(runner, looped(note)):
        session = await spawned(real, "note", "note", budget=Budget(calls=2))
        await eventually(lambda: is_waiting(session))
        await session.set_budget(calls=20)
        result = await session.result(timeout=SECONDS)
    assert (result.text, made) == ("2", ["note", "note"]), "no call was made again"
    assert await said(session) == ["", "1", "", "2", "2"]
    answers = [one.text async for one in session.transcript() if one.role == "ASSISTANT"]
    assert len(answers) == 3
    assert result.usage.output_token_count > 0


async def is_waiting(session: Session) -> bool:
    run = (await session.refresh()).latest_run
    return run is not None and run.state == "WAITING_BUDGET"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_open_call_is_left_to_the_next_worker(real: Mesh, runner: Mesh, idempotent: bool) -> None:
    began, ids = asyncio.Event(), []

    @tool(idempotent=idempotent)
    async def wait(call: CurrentCall) -> str:
        """Wait, the first time."""
        ids.append(call.request_id)
        if len(ids) == 1:
            began.set()
            await asyncio.Event().wait()
        return "waited"

    session = await spawned(real, "wait")
    async with working(runner, looped(wait)):
        await began.wait()
        await session.send("And a message.")
    async with working(runner, looped(wait)):
        result = await session.result(timeout=SECONDS)
    _, outcome, message, *_ = await said(session)
    assert message == "And a message.", "it comes behind the result"
    assert len(set(ids)) == 1
    if idempotent:
        assert (outcome, len(ids)) == ("waited", 2)
    else:
        assert outcome.startswith("OUTCOME_UNKNOWN")
        assert len(ids) == 1
    assert result.text == outcome
