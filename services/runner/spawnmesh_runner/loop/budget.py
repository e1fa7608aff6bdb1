"""Budgets that a run shares: a model call that they refuse is made when they have room."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh_core.errors import TRANSIENT_FACT, MeshError, refused_with, transient_fact
from spawnmesh_core.reasons import Reason
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from spawnmesh_runner.clients.retry import backoff, call_with_retry
from spawnmesh_runner.domain.tools import RunParked
from spawnmesh_runner.loop.assignment import Assignment, render_usage

log = structlog.get_logger()

T = TypeVar("T")

_HELD = (session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_FINALIZING)


async def within_budget(assignment: Assignment, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what a call of a model returns. If a budget refuses it, wait until there is room.

    The run waits without this runner: raises RunParked then. If a limit was raised meanwhile, the
    same call is made again, with growing pauses while it is refused and no limit is reached.

    An interrupt of the turn cuts the call and a pause short, with TurnInterrupted. It cannot cut
    the request that gives the run up.
    """
    cut_turn = assignment.interruption.cut_turn

    async def attempt() -> T:
        return await cut_turn(call())

    async def wait_for_room(_state: RetryCallState) -> None:
        await await_budget(assignment)

    attempts = AsyncRetrying(
        retry=retry_if_exception(is_over_budget),
        before_sleep=wait_for_room,
        wait=backoff,
        sleep=lambda seconds: cut_turn(asyncio.sleep(seconds)),
        reraise=True,
    )
    return await attempts(attempt)


def is_over_budget(error: BaseException) -> bool:
    """Return whether a budget refused a call before any model was called."""
    return isinstance(error, MeshError) and error.reason is Reason.SESSION_BUDGET_EXCEEDED


async def await_budget(assignment: Assignment) -> None:
    """Give the run up until its budgets have room. Return if they have room by now.

    Raises RunParked if the run waits, or has ended with that; and MeshError. If too many runs of
    the tenant wait already, the error delays the run: it keeps no runner busy, and is refused again
    later.
    """
    peers = assignment.peers
    request = budget_pb2.AwaitBudgetRequest(
        epoch=assignment.epoch, usage=render_usage(assignment.usage_total)
    )
    await assignment.run_events.reported()
    assignment.handover.begin()
    try:
        run = (await call_with_retry(peers.session, peers.budgets.AwaitBudget, request)).run
    except MeshError as error:
        assignment.handover.fail()
        if refused_with(error, Reason.RUN_QUEUE_FULL):
            raise _delaying(error) from error
        raise
    if run.state not in _HELD or run.epoch != assignment.epoch:
        raise _parked(run)
    assignment.handover.fail()
    log.info("budget_has_room")


def _parked(run: session_pb2.Run) -> RunParked:
    if run.state == session_pb2.RUN_STATE_WAITING_BUDGET:
        return RunParked("the run waits for its budget", budget_session_id=run.budget_session_id)
    if run.state == session_pb2.RUN_STATE_FAILED:
        return RunParked("the run failed at its budget", error_reason=Reason.SESSION_BUDGET_EXCEEDED.value)
    # After a repeated request, the run may be queued already, or another runner may have it.
    state = session_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_")
    return RunParked(f"the run was given up, and is {state}")


def _delaying(error: MeshError) -> MeshError:
    return MeshError(
        error.reason,
        error.message,
        retry_after_seconds=error.retry_after_seconds,
        facts={**error.facts, TRANSIENT_FACT: transient_fact(True)},
    )
