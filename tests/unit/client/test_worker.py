"""A worker and the interrupts of its runs, against services in this process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh_client import MeshError, Reason, worker
from spawnmesh_client.run_context import RunContext

from tests.support.client.worker_stage import Stage, stage, working
from tests.support.waiting import eventually

__all__ = ["stage"]

INTERRUPTED = pb.FinalizeRunResponse(interrupted=pb.Interrupted())
HEARTBEAT_NEVER = 3600.0
HEARTBEAT_OFTEN = 3.0


async def test_interrupt_cancels_the_function_which_keeps_what_was_said(stage: Stage) -> None:
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        ctx.usage.output_token_count = 7
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ctx.append("It begins as")
        return "never"

    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_RUN)
        ended = await stage.ended()
    assert (ended.epoch, ended.usage.output_token_count) == (1, 7)
    assert stage.transcript.texts == ["It begins as"]
    assert stage.runs.named(pb.FinalizeRunRequest) == []


async def test_run_that_is_claimed_interrupted_is_ended_without_its_function(stage: Stage) -> None:
    called: list[RunContext] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        called.append(ctx)
        return "never"

    stage.runs.queue(HEARTBEAT_NEVER, is_interrupted=True)
    async with working(stage):
        await stage.ended()
    assert (called, stage.transcript.writer_count) == ([], 0)


async def test_answer_of_an_interrupted_run_is_its_last_word(stage: Stage) -> None:
    calls: list[str] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        calls.append(ctx.run_id)
        return "too late"

    stage.runs.outcomes = [INTERRUPTED]
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await stage.ended()
    assert (len(calls), stage.transcript.texts) == (1, ["too late"])


async def said_so_far() -> str:
    return "so far"


async def nothing() -> None:
    return None


async def failure() -> str:
    raise KeyError("clean-up")


@pytest.mark.parametrize(
    ("reaction", "offers"),
    [(said_so_far, ["so far"]), (nothing, []), (failure, [])],
    ids=["answer", "no-answer", "error"],
)
async def test_function_that_catches_its_cancellation_does_not_fail_the_run(
    stage: Stage, reaction: Callable[[], Any], offers: list[str]
) -> None:
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await reaction()

    stage.runs.outcomes = [INTERRUPTED]
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_RUN)
        await stage.ended()
    assert [offer.draft_text for offer in stage.runs.named(pb.FinalizeRunRequest)] == offers


async def test_urgent_message_is_noted_until_the_inbox_is_read(stage: Stage) -> None:
    began = asyncio.Event()
    seen: list[tuple[bool, str]] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        seen.append((ctx.has_urgent_message, ctx.task))
        began.set()
        await eventually(lambda: ctx.has_urgent_message)
        await ctx.read_inbox()
        seen.append((ctx.has_urgent_message, ctx.task))
        return "done"

    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        stage.runs.inbox = [pb.InboxMessage(key="k", append_request_id="a", text="In French.")]
        stage.interrupt(pb.INTERRUPT_TURN)
        (offer,) = await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))
    assert (offer.draft_text, seen) == ("done", [(False, ""), (False, "In French.")])
    assert stage.transcript.texts == ["In French.", "done"]


async def test_heartbeat_of_before_the_reading_brings_no_urgent_message_back(stage: Stage) -> None:
    began, is_read, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    contexts: list[RunContext] = []

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        contexts.append(ctx)
        began.set()
        await eventually(lambda: stage.runs.named(pb.HeartbeatRunRequest))
        await ctx.read_inbox()
        is_read.set()
        await go_on.wait()
        return "done"

    stage.runs.queue(HEARTBEAT_NEVER)
    stage.runs.answers_heartbeats.clear()
    async with working(stage):
        await began.wait()
        stage.interrupt(pb.INTERRUPT_TURN)
        await is_read.wait()
        stage.runs.interrupt = pb.INTERRUPT_UNSPECIFIED
        stage.runs.answers_heartbeats.set()
        await eventually(lambda: len(stage.runs.named(pb.HeartbeatRunRequest)) == 2)
        assert not contexts[0].has_urgent_message
        go_on.set()
        await eventually(lambda: stage.runs.named(pb.FinalizeRunRequest))


async def test_one_stream_of_the_worker_renews_the_leases_of_all_runs(stage: Stage) -> None:
    began: list[str] = []
    go_on = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(ctx: RunContext) -> str:
        began.append(ctx.run_id)
        await go_on.wait()
        return "done"

    for _ in range(2):
        stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await eventually(lambda: len(began) == 2)
        stage.runs.hints.put_nowait(None)
        await eventually(lambda: len(stage.runs.named(pb.HeartbeatRunRequest)) == 2)
        go_on.set()
        await eventually(lambda: len(stage.runs.named(pb.FinalizeRunRequest)) == 2)
    assert stage.runs.watchers == ["ours"]


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_RPC, Reason.CALLER_NOT_ALLOWED, Reason.TOKEN_EXPIRED])
async def test_heartbeats_interrupt_a_run_while_the_stream_is_refused(
    stage: Stage, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PAUSE_SECONDS", 0.01)
    stage.runs.watch_refusal = MeshError(reason, "no hints")

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> str:
        await asyncio.Event().wait()
        return "never"

    stage.runs.queue(HEARTBEAT_OFTEN)
    async with working(stage):
        await eventually(lambda: len(stage.runs.watchers) > 2)
        stage.runs.interrupt = pb.INTERRUPT_RUN
        await stage.ended()


async def test_stream_that_broke_is_opened_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_PAUSE_SECONDS", 0.01)
    began = asyncio.Event()

    @stage.worker.agent("clerk")
    async def write(_: RunContext) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    stage.runs.watch_refusal = MeshError(Reason.DRAINING, "stopping")
    stage.runs.queue(HEARTBEAT_NEVER)
    async with working(stage):
        await began.wait()
        await eventually(lambda: stage.runs.watchers)
        stage.runs.watch_refusal = None
        stage.interrupt(pb.INTERRUPT_RUN)
        await stage.ended()
