"""A worker whose model calls are refused, since a budget is used up."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client import MeshError, Reason
from spawnmesh_client.run_context import RunContext

from tests.support.client.worker_stage import Stage, stage, working
from tests.support.waiting import eventually

__all__ = ["stage"]

LEASE_SECONDS = 3600.0
USED = TokenUsage(
    input_token_count=100,
    output_token_count=20,
    cache_read_token_count=3,
    cache_write_token_count=4,
    cost_micros=500,
    price_version="new",
)
SUM = TokenUsage(
    input_token_count=101,
    output_token_count=20,
    cache_read_token_count=3,
    cache_write_token_count=4,
    cost_micros=510,
    price_version="new",
)
"""The tokens of an answer with those of a failed attempt before it."""
WAITING = session_pb2.Run(state=session_pb2.RUN_STATE_WAITING_BUDGET, epoch=1)
ROOM = session_pb2.Run(state=session_pb2.RUN_STATE_RUNNING, epoch=1)
Function = Callable[[RunContext], Awaitable[str]]


def exceeded() -> MeshError:
    return MeshError(Reason.SESSION_BUDGET_EXCEEDED, "used up", facts={"limits": "COST"})


async def given_up(stage: Stage) -> None:
    """Wait until the next run ends, which shows that the one before was left."""
    await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))
    assert stage.runs.named(pb.FailRunRequest) == stage.runs.named(pb.ReleaseRunRequest) == []
    (offer,) = stage.runs.named(pb.FinalizeRunRequest)
    assert offer.draft_text == "another run"


async def passes(ctx: RunContext) -> str:
    await ctx.generate("Hello?")
    return (await ctx.generate("And now?")).text


async def wraps(ctx: RunContext) -> str:
    try:
        return await passes(ctx)
    except MeshError as error:
        raise RuntimeError("a framework failed") from error


async def waits(ctx: RunContext) -> str:
    try:
        return await passes(ctx)
    except MeshError:
        await ctx.wait_for_budget()
    return "never"


async def hides(ctx: RunContext) -> str:
    try:
        return await waits(ctx)
    except Exception:  # noqa: BLE001 - what a careless function does
        return "sorry"


async def breaks(ctx: RunContext) -> str:
    try:
        return await waits(ctx)
    except Exception:  # noqa: BLE001 - what another careless function does
        raise KeyError("in the clean-up") from None


@pytest.mark.parametrize("function", [passes, wraps, waits, hides, breaks], ids=lambda one: one.__name__)
@pytest.mark.parametrize("state", ["WAITING_BUDGET", "INTERRUPTED", "FAILED", "QUEUED"])
async def test_run_whose_budget_is_used_up_is_given_up_quietly(
    stage: Stage, function: Function, state: str
) -> None:
    functions: list[Function] = [function]

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        return await functions.pop()(ctx) if functions else "another run"

    stage.router.answers = [USED, exceeded()]
    run = session_pb2.Run(state=session_pb2.RunState.Value(f"RUN_STATE_{state}"), epoch=1)
    stage.budgets.answers = [run]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        await eventually(lambda: stage.budgets.requests)
        stage.runs.queue(LEASE_SECONDS)
        await given_up(stage)
        await eventually(lambda: stage.transcript.released_count == 2)
    (request,) = stage.budgets.requests
    assert (request.epoch, request.usage) == (1, SUM)


async def test_function_is_called_again_if_the_budget_has_room_by_now(stage: Stage) -> None:
    stage.worker.agent("clerk")(passes)
    stage.router.answers = [USED, exceeded(), exceeded(), USED, USED]
    stage.budgets.answers = [ROOM, ROOM]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        (offer,) = await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))
    assert (offer.draft_text, offer.usage.cost_micros) == ("said", 3 * 510)
    assert (offer.usage.price_version, len(stage.budgets.requests)) == ("new", 2)


async def test_function_that_waits_goes_on_if_the_budget_has_room_by_now(stage: Stage) -> None:
    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        with pytest.raises(MeshError):
            await ctx.generate("Hello?")
        await ctx.wait_for_budget()
        return (await ctx.generate("And now?")).text

    stage.router.answers = [exceeded(), USED]
    stage.budgets.answers = [ROOM]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))


async def test_run_that_another_worker_holds_by_now_is_given_up(stage: Stage) -> None:
    calls: list[str] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        calls.append(ctx.run_id)
        return await passes(ctx) if len(calls) == 1 else "another run"

    stage.router.answers = [exceeded()]
    stage.budgets.answers = [session_pb2.Run(state=session_pb2.RUN_STATE_RUNNING, epoch=2)]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        await eventually(lambda: stage.transcript.released_count == 1)
        stage.runs.queue(LEASE_SECONDS)
        await given_up(stage)
    assert len(calls) == len(set(calls)) == 2, "the function was not called again for the first run"


async def test_run_goes_back_to_the_queue_if_too_many_wait(stage: Stage) -> None:
    stage.worker.agent("clerk")(passes)
    stage.router.answers = [exceeded()]
    stage.budgets.answers = [MeshError(Reason.RUN_QUEUE_FULL, "too many wait")]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        await eventually(lambda: stage.runs.named(pb.ReleaseRunRequest))
    assert stage.runs.named(pb.FailRunRequest) == []


async def test_interrupt_of_a_run_that_waits_is_left_to_the_mesh(stage: Stage) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        if stage.budgets.requests:
            return "another run"
        try:
            await ctx.generate("Hello?")
        except MeshError:
            try:
                await ctx.wait_for_budget()
            finally:
                began.set()
                await go_on.wait()
        return "never"

    stage.router.answers = [exceeded()]
    stage.budgets.answers = [WAITING]
    stage.runs.queue(LEASE_SECONDS)
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_RUN)
        await eventually(lambda: stage.runs.named(pb.HeartbeatRunRequest))
        stage.runs.interrupt = pb.INTERRUPT_UNSPECIFIED
        go_on.set()
        stage.runs.queue(LEASE_SECONDS)
        await given_up(stage)
    assert stage.runs.named(pb.EndInterruptedRunRequest) == []


async def test_usage_has_what_failed_calls_used_and_the_time_before_the_wait(stage: Stage) -> None:
    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        with pytest.raises(MeshError):
            await ctx.generate("Hello?")
        return "done"

    facts = {"used_input_token_count": 7, "used_cost_micros": 70, "used_output_token_count": "many"}
    stage.router.answers = [MeshError(Reason.ALL_CANDIDATES_FAILED, "failed", facts=facts)]
    stage.runs.queue(LEASE_SECONDS, usage=USED)
    async with working(stage):
        (offer,) = await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))
    used = offer.usage
    assert (used.input_token_count, used.output_token_count, used.cost_micros) == (107, 20, 570)
    assert used.price_version == "new"
