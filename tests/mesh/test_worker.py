"""A worker of a tenant answers the runs of its agents in the place of the mesh's runners."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest
from spawnmesh_client import Agent, Mesh, PermissionDenied, RunFailed, RunState, Session, connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(420)

AGENTS = ("researcher", "sleeper")


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A tenant as its client and its workers see it."""

    client: Mesh
    runner: Mesh

    async def spawn(self, task: str, agent: str = "researcher", **options: str) -> Session:
        return await self.client.spawn(task, agent=agent, runtime="EXTERNAL", **options)


@pytest.fixture
async def tenancy(stack: Stack) -> AsyncIterator[Tenancy]:
    """Create a tenant with two agents, and connect to it with two tokens."""
    tenant = f"t-{uuid4().hex[:12]}"
    names = ("session", "transcript", "attachment-blob", "model-router", "hook")
    targets = {name: stack.targets[name] for name in names}
    minter = TokenMinter("client", stack.keys / "client.pem")
    claims = minter.runner_token("worker", 3600, tenants=[tenant], agents=AGENTS)
    async with connect(targets={"session": targets["session"]}, token=stack.admin_token()) as operator:
        await operator.tenants.create(tenant)
    async with (
        connect(targets=targets, token=stack.client_token(tenant)) as client,
        connect(targets=targets, token=claims) as runner,
    ):
        for agent in AGENTS:
            await client.agents.put(Agent(agent, spawnable_agents=("*",)))
        yield Tenancy(client, runner)


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker during the block, and stop it as a signal does."""
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()


async def test_function_answers_with_a_model_a_child_and_its_own_entries(tenancy: Tenancy) -> None:
    worker = Worker(tenancy.runner, name="ours")
    seen: list[RunContext] = []

    @worker.agent("researcher")
    async def research(ctx: RunContext) -> str:
        seen.append(ctx)
        assert ctx.workspace.is_dir()
        await ctx.append("I begin.")
        answer = await ctx.generate()
        context = await ctx.assemble()
        child = await ctx.spawn("Say hello.", agent="default")
        return f"{len(context.messages)} messages. {answer.text} {(await child.result(timeout=240)).text}"

    async with working(worker):
        session = await tenancy.spawn("Look it up.")
        result = await session.result(timeout=240)

    (ctx,) = seen
    assert (ctx.task, ctx.instruction, ctx.agent.agent_id) == ("Look it up.", "", "researcher")
    assert not ctx.workspace.exists()
    assert result.text.startswith("2 messages. I am the scripted model")
    assert result.text.endswith("You said: Say hello.")
    assert result.usage.output_token_count > 0
    entries = [(entry.role, entry.text) async for entry in session.transcript() if entry.role]
    *said, announced = entries
    assert said == [("USER", "Look it up."), ("ASSISTANT", "I begin."), ("ASSISTANT", result.text)]
    assert announced[0] == "USER", "the result of the child, which did not call the function again"
    assert [child.parent_session_id async for child in session.children()] == [session.session_id]


async def test_message_is_the_task_of_the_next_run(tenancy: Tenancy) -> None:
    worker = Worker(tenancy.runner)

    @worker.agent("researcher")
    async def repeat(ctx: RunContext) -> str:
        return ctx.task.upper()

    async with working(worker):
        session = await tenancy.spawn("one", mode="SESSION")
        assert (await session.result(timeout=60)).text == "ONE"
        await session.send("two")
        assert (await session.result(timeout=60)).text == "TWO"


async def test_exception_fails_the_run_without_its_text(tenancy: Tenancy) -> None:
    worker = Worker(tenancy.runner)

    @worker.agent("researcher")
    async def broken(_: RunContext) -> str:
        raise KeyError("secret")

    async with working(worker):
        session = await tenancy.spawn("Fail.")
        with pytest.raises(RunFailed) as failed:
            await session.result(timeout=60)
        nobody = await tenancy.spawn("Fail.", "sleeper")
        with pytest.raises(RunFailed) as unknown:
            await nobody.result(timeout=60)
    assert failed.value.reason == unknown.value.reason == "RUNNER_ERROR"
    assert failed.value.message == "the agent's function raised KeyError"


async def test_worker_that_stops_hands_its_run_back_and_another_one_ends_it(tenancy: Tenancy) -> None:
    began = asyncio.Event()
    first, second = Worker(tenancy.runner), Worker(tenancy.runner)

    @first.agent("sleeper")
    async def wait(_: RunContext) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    @second.agent("sleeper")
    async def answer(_: RunContext) -> str:
        return "from the second"

    session = await tenancy.spawn("Wait.", "sleeper")
    async with working(first):
        await began.wait()
        assert await state_of(session) is RunState.RUNNING
    assert await state_of(session) is RunState.QUEUED
    async with working(second):
        result = await session.result(timeout=60)
    assert (result.text, result.run.attempt_count) == ("from the second", 1)


async def test_killed_run_ends_its_function(tenancy: Tenancy) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()
    worker = Worker(tenancy.runner)

    @worker.agent("sleeper")
    async def wait(_: RunContext) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    async with working(worker):
        session = await tenancy.spawn("Wait.", "sleeper")
        await began.wait()
        await session.kill()
        await cancelled.wait()
    with pytest.raises(RunFailed, match="KILLED"):
        await session.result(timeout=60)


async def test_interrupted_run_keeps_what_its_function_said(tenancy: Tenancy) -> None:
    worker = Worker(tenancy.runner)
    began = asyncio.Event()

    @worker.agent("sleeper")
    async def wait(ctx: RunContext) -> str:
        if ctx.task == "Go on.":
            return "I go on."
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ctx.append("It begins as")
        return "never"

    async with working(worker):
        session = await tenancy.spawn("Wait.", "sleeper", mode="SESSION")
        await began.wait()
        run = await session.interrupt()
        assert run is not None
        assert run.interrupt_time is not None
        with pytest.raises(RunFailed, match="INTERRUPTED"):
            await session.result(timeout=60)
        await session.send("Go on.")
        assert (await session.result(timeout=60)).text == "I go on."
    said = [entry.text async for entry in session.transcript() if entry.role]
    assert said == ["Wait.", "It begins as", "Go on.", "I go on."]


async def test_urgent_message_is_read_at_the_next_safe_point(tenancy: Tenancy) -> None:
    worker = Worker(tenancy.runner)
    began = asyncio.Event()

    @worker.agent("sleeper")
    async def wait(ctx: RunContext) -> str:
        began.set()
        await eventually(lambda: ctx.has_urgent_message)
        await ctx.read_inbox()
        return f"{ctx.task} {ctx.has_urgent_message}"

    async with working(worker):
        session = await tenancy.spawn("Wait.", "sleeper")
        await began.wait()
        run = await session.interrupt("In French.")
        result = await session.result(timeout=60)
    assert run is not None
    assert (result.text, result.run.run_id) == ("In French. False", run.run_id)


async def test_worker_with_a_token_of_a_client_says_so(tenancy: Tenancy) -> None:
    with pytest.raises(PermissionDenied):
        await Worker(tenancy.client).run()


async def state_of(session: Session) -> RunState:
    run = (await session.refresh()).latest_run
    assert run is not None
    return run.state
