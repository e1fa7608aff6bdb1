"""Runs that wait for a budget: without a runner, until it is raised or the wait is over."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.budgets import (
    FAILED,
    INTERRUPTED,
    KILLED,
    QUEUED,
    RUNNING,
    WAITING,
    Spending,
    events_until,
    wake,
)
from tests.support.session.calls import kill, send
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import OPEN, beat, interrupt, refusal_of, steer
from tests.support.session.tables import rows, superuser, sweeping


async def test_AwaitBudget__the_run_waits_without_a_lease_and_goes_on_when_the_limit_is_raised(
    mesh: Mesh,
) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run()
    session_id = held.session.session_id
    waiting = (await mesh.get(session_id)).latest_run
    assert (waiting.state, waiting.budget_session_id) == (WAITING, session_id)
    assert await refusal_of(beat(mesh, held)) is Reason.RUN_LEASE_LOST
    claimed = [one.run.run_id for one in await mesh.claim_any(wait_seconds=0.5, limit=64)]
    assert held.run.run_id not in claimed, "no runner gets it"
    assert list((await spending.budget(session_id)).reached_limits) == [pb.BUDGET_LIMIT_MODEL_CALLS]
    await wake(mesh)
    assert (await mesh.get(session_id)).latest_run.state == WAITING

    await spending.raise_limits(session_id, max_model_call_count=2)
    await wake(mesh)
    run = (await mesh.get(session_id)).latest_run
    assert (run.state, run.budget_session_id) == (QUEUED, "")
    again = await mesh.claim(session_id)
    assert (again.run.run_id, again.run.attempt_count) == (held.run.run_id, held.run.attempt_count)
    await spending.call(again)
    assert await refusal_of(spending.admit(again)) is Reason.SESSION_BUDGET_EXCEEDED
    seen = await events_until(mesh, session_id, lambda event: event.run_state == QUEUED and event.number > 4)
    waited = [event.detail for event in seen if event.run_state == WAITING]
    assert waited == [f"the budget of session {session_id} is used up: model calls 1 of 1"]
    assert seen[-1].detail == "the budget has room"


async def test_AwaitBudget__a_run_whose_budgets_have_room_is_still_held(mesh: Mesh) -> None:
    """The limit was raised between the refusal of the call and this one."""
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=1)
    await spending.call(held)
    await spending.raise_limits(held.session.session_id, max_model_call_count=2)
    assert (await spending.wait(held)).state == RUNNING
    await beat(mesh, held)
    await spending.call(held)


async def test_AwaitBudget__a_repeat_returns_the_run_as_it_is(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run()
    assert (await spending.wait(held)).state == WAITING
    await spending.raise_limits(held.session.session_id, max_model_call_count=2)
    await wake(mesh)
    assert (await spending.wait(held)).state == QUEUED
    again = await mesh.claim(held.session.session_id)
    assert await refusal_of(spending.wait(held)) is Reason.RUN_LEASE_LOST
    assert (await spending.wait(again)).state == RUNNING


async def test_AwaitBudget__keeps_what_the_run_has_used(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=1)
    await spending.call(held)
    usage = TokenUsage(input_token_count=5, cost_micros=3, price_version="v1")
    assert (await spending.wait(held, usage=usage)).usage == usage
    assert await kill(mesh, held.session.session_id)
    assert (await mesh.get(held.session.session_id)).latest_run.usage == usage


async def test_AwaitBudget__the_wait_moves_the_deadline(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run(spawn={"run_timeout": Duration(seconds=60)})
    async with superuser(postgres) as link:
        await link.execute(
            "update session.runs set wait_time = wait_time - interval '60 s' where run_id = %s",
            (held.run.run_id,),
        )
    await spending.raise_limits(held.session.session_id, max_model_call_count=2)
    await wake(mesh)
    again = await mesh.claim(held.session.session_id)
    moved = again.deadline_time.ToDatetime() - held.deadline_time.ToDatetime()
    assert moved >= timedelta(seconds=60)


async def let_wait_end(mesh: Mesh, postgres: Any, run_id: str) -> None:
    async with superuser(postgres) as link:
        await link.execute(
            "update session.run_queue set expire_time = now(), due_time = now() where run_id = %s", (run_id,)
        )
    async with sweeping(mesh) as sweep:
        await sweep.end_lost_runs()


async def test_AwaitBudget__after_max_wait_the_run_fails(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run(max_wait=Duration(seconds=90))
    [entry] = await rows(
        postgres,
        "select q.expire_time - r.wait_time as left_time from session.run_queue q join session.runs r"
        " using (run_id) where run_id = %s",
        held.run.run_id,
    )
    assert entry["left_time"] == timedelta(seconds=90)
    await let_wait_end(mesh, postgres, held.run.run_id)
    run = (await mesh.get(held.session.session_id)).latest_run
    assert (run.state, run.error_reason) == (FAILED, reason_pb2.REASON_SESSION_BUDGET_EXCEEDED)
    assert "model calls 1 of 1" in run.error_message
    assert run.budget_session_id == ""


async def test_AwaitBudget__a_limit_raised_in_time_wins_over_the_end_of_the_wait(
    mesh: Mesh, postgres: Any
) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run()
    await spending.raise_limits(held.session.session_id, max_model_call_count=2)
    await let_wait_end(mesh, postgres, held.run.run_id)
    assert (await mesh.get(held.session.session_id)).latest_run.state == QUEUED


async def test_AwaitBudget__with_no_wait_the_run_fails_at_once(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=1, max_wait=Duration())
    await spending.call(held)
    usage = TokenUsage(output_token_count=4)
    run = await spending.wait(held, usage=usage)
    assert (run.state, run.error_reason) == (FAILED, reason_pb2.REASON_SESSION_BUDGET_EXCEEDED)
    assert run.usage == usage
    assert (await spending.wait(held)).state == FAILED, "a repeat finds the end"


async def test_AwaitBudget__an_interrupted_run_ends_instead(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=1, spawn={"mode": OPEN})
    await spending.call(held)
    await interrupt(mesh, held.session.session_id)
    assert (await spending.wait(held)).state == INTERRUPTED


async def test_InterruptRun__ends_a_run_that_waits_for_its_budget(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run(spawn={"mode": OPEN})
    ended = await interrupt(mesh, held.session.session_id)
    assert (ended.state, ended.budget_session_id) == (INTERRUPTED, "")
    assert (await send(mesh, held.session.session_id)).run_id != ended.run_id


async def test_KillSession__ends_a_run_that_waits_for_its_budget(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run()
    await kill(mesh, held.session.session_id)
    assert (await mesh.get(held.session.session_id)).latest_run.state == KILLED
    await spending.raise_limits(held.session.session_id, max_model_call_count=9)
    await wake(mesh)
    assert (await mesh.get(held.session.session_id)).latest_run.state == KILLED


async def test_InterruptRun__a_text_waits_with_the_run(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run(spawn={"mode": OPEN})
    steered = await steer(mesh, held.session.session_id)
    assert (steered.run_id, steered.state) == (held.run.run_id, WAITING)
    await spending.raise_limits(held.session.session_id, max_model_call_count=2)
    await wake(mesh)
    again = await mesh.claim(held.session.session_id)
    assert again.pending_message_count == 1


async def test_UpdateBudget__a_run_waits_on_for_the_next_of_its_budgets(mesh: Mesh) -> None:
    """Both of the root and of the child are used up. Raised one by one, in either order."""
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    spending = Spending(mesh)
    for order in ((0, 1), (1, 0)):
        root = await spending.held_run(max_model_call_count=1)
        limits = pb.Budget(max_model_call_count=1)
        child = await mesh.claim((await mesh.spawn_as(root, budget=limits)).session_id)
        ids = [root.session.session_id, child.session.session_id]
        await spending.call(child)
        assert (await spending.wait(child)).budget_session_id == ids[0]
        await spending.raise_limits(ids[order[0]], max_model_call_count=2)
        await wake(mesh)
        waiting = (await mesh.get(ids[1])).latest_run
        assert (waiting.state, waiting.budget_session_id) == (WAITING, ids[order[1]])
        await spending.raise_limits(ids[order[1]], max_model_call_count=2)
        await wake(mesh)
        assert (await mesh.get(ids[1])).latest_run.state == QUEUED


async def test_AwaitBudget__waiting_runs_have_places_of_their_own(mesh: Mesh) -> None:
    settings = TenantSettings()
    settings.max_queued_run_count = settings.max_running_run_count = 1
    mesh.tenant = f"{mesh.tenant}-one"
    await mesh.create_tenant(settings=settings)
    spending = Spending(mesh)
    first = await spending.waiting_run()
    second = await spending.held_run(max_model_call_count=1)
    await mesh.spawn()  # The one that may wait for a runner, beside the one that runs.
    await spending.call(second)
    assert await refusal_of(spending.wait(second)) is Reason.RUN_QUEUE_FULL
    await beat(mesh, second)
    await kill(mesh, first.session.session_id)
    assert (await spending.wait(second)).state == WAITING


async def test_UpdateBudget__a_changed_wait_holds_for_waits_that_have_begun(
    mesh: Mesh, postgres: Any
) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run(max_wait=Duration(seconds=3600))
    query = (
        "select q.expire_time - r.wait_time as left_time from session.run_queue q join session.runs r"
        " using (run_id) where run_id = %s"
    )
    for seconds in (7200, 60):
        await spending.raise_limits(held.session.session_id, max_wait=Duration(seconds=seconds))
        await wake(mesh)
        [entry] = await rows(postgres, query, held.run.run_id)
        assert entry["left_time"] == timedelta(seconds=seconds)
    assert (await mesh.get(held.session.session_id)).latest_run.state == WAITING


async def test_AwaitBudget__runs_that_fail_at_once_do_not_block_calls_of_their_parent(mesh: Mesh) -> None:
    """The end of a child looks at the live run of its parent, whose calls lock it and the budgets."""
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    spending = Spending(mesh)
    limits = {"max_cost_micros": 10, "max_wait": Duration()}
    for _ in range(3):
        root = await spending.held_run(spawn={"mode": OPEN}, **limits)
        children = [await mesh.claim((await mesh.spawn_as(root)).session_id) for _ in range(3)]
        calls = [await spending.admit(root, cost=0, tokens=0) for _ in range(6)]
        await spending.record(calls.pop(), cost=10)
        outcomes = await asyncio.gather(
            *(spending.wait(child) for child in children), *(spending.record(call) for call in calls)
        )
        assert [run.state for run in outcomes[:3]] == [FAILED] * 3


async def test_AwaitBudget__a_run_reads_no_amounts_of_the_budgets_of_its_ancestors(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    spending = Spending(mesh)
    root = await spending.held_run(max_cost_micros=123_456)
    child = await mesh.claim((await mesh.spawn_as(root)).session_id)
    await spending.call(root, cost=200_000)
    with pytest.raises(MeshError) as refused:
        await spending.admit(child)
    used_up = f"the budget of session {root.session.session_id} is used up: cost"
    assert refused.value.message == f"{used_up}; give the run up with AwaitBudget"
    assert (await spending.wait(child)).state == WAITING
    seen = await events_until(mesh, child.session.session_id, lambda event: event.run_state == WAITING)
    assert seen[-1].detail == used_up


@pytest.mark.parametrize("name", ["WAITING_BUDGET", "RUN_STATE_WAITING_BUDGET"])
async def test_ListSessions__finds_sessions_whose_run_waits_for_a_budget(mesh: Mesh, name: str) -> None:
    held = await Spending(mesh).waiting_run()
    await mesh.spawn()
    request = session_pb.ListSessionsRequest(filter=f"run_state = {name}")
    found = (await mesh.client(mesh.sessions.ListSessions, request)).sessions
    assert [one.session_id for one in found] == [held.session.session_id]
    assert list(found[0].budget_session_ids) == [held.session.session_id]


@pytest.mark.parametrize("round_number", range(6))
async def test_UpdateBudget__no_run_waits_on_beside_a_raised_limit(mesh: Mesh, round_number: int) -> None:
    """The run begins to wait while the limit is raised: either of the two sees the other."""
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=1)
    await spending.call(held)
    session_id = held.session.session_id

    async def raised() -> None:
        await asyncio.sleep(0.002 * round_number)
        await spending.raise_limits(session_id, max_model_call_count=2)
        await wake(mesh)

    await asyncio.gather(spending.wait(held), raised())
    await wake(mesh)
    assert (await mesh.get(session_id)).latest_run.state in (RUNNING, QUEUED)
