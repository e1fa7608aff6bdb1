"""Model calls in budgets: admitted by what is used, counted once, and never for free."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.job_kinds import EXPIRE_MODEL_CALL

from tests.support.session.budgets import QUEUED, WAITING, Spending, wake
from tests.support.session.calls import fail
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import refusal_of
from tests.support.session.tables import rows, superuser
from tests.support.session.worker import job_worker_of


async def expire(mesh: Mesh, postgres: Any) -> None:
    """Let the time of all open calls of the tenant be over."""
    async with superuser(postgres) as link:
        await link.execute(
            "update session.jobs set due_time = now() where tenant_id = %s and kind = %s",
            (mesh.tenant, EXPIRE_MODEL_CALL),
        )
    async with job_worker_of(mesh.settings) as worker:
        await worker.run_due(EXPIRE_MODEL_CALL)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"max_token_count": 30}, pb.BUDGET_LIMIT_TOKENS),
        ({"max_cost_micros": 9}, pb.BUDGET_LIMIT_COST),
        ({"max_model_call_count": 3}, pb.BUDGET_LIMIT_MODEL_CALLS),
    ],
    ids=["tokens", "cost", "calls"],
)
async def test_AdmitModelCall__each_limit_stops_the_calls(
    mesh: Mesh, limits: dict[str, int], kind: int
) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(**limits)
    for _ in range(3):
        await spending.call(held, tokens=10, cost=3)
    assert await refusal_of(spending.admit(held)) is Reason.SESSION_BUDGET_EXCEEDED
    budget = await spending.budget(held.session.session_id)
    used = budget.usage
    assert (used.token_count, used.cost_micros, used.model_call_count) == (30, 9, 3)
    assert list(budget.reached_limits) == [kind]


async def test_AdmitModelCall__the_time_of_the_work_counts(mesh: Mesh, postgres: Any) -> None:
    """From the claim on, up to the newest call; and not the time in which nothing held the run."""
    spending = Spending(mesh)
    held = await spending.held_run(max_run_time=Duration(seconds=100))
    session_id, run_id = held.session.session_id, held.run.run_id

    async def earlier(seconds: int) -> None:
        async with superuser(postgres) as link:
            await link.execute(
                "update session.runs set counted_time = counted_time - %s where run_id = %s",
                (timedelta(seconds=seconds), run_id),
            )

    async def used() -> timedelta:
        time: timedelta = (await spending.budget(session_id)).usage.run_time.ToTimedelta()
        return time

    await earlier(60)
    call_id = await spending.admit(held)
    assert timedelta(seconds=60) <= (first := await used()) < timedelta(seconds=90)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    await earlier(1000)
    await spending.record(call_id)
    assert await used() == first, "no runner holds it"
    again = await mesh.claim(session_id)
    await earlier(60)
    with pytest.raises(MeshError) as refused:
        await spending.admit(again)
    assert refused.value.facts["limits"] == "RUN_TIME"
    assert await used() >= timedelta(seconds=120), "the refused call counts the time too"


async def test_AdmitModelCall__a_repeat_counts_once(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=5)
    call_id = await spending.admit(held)
    assert await spending.admit(held, call_id) == call_id
    await spending.record(call_id, tokens=7, cost=2)
    await spending.record(call_id, tokens=7, cost=2)
    used = (await spending.budget(held.session.session_id)).usage
    assert (used.model_call_count, used.token_count, used.cost_micros) == (1, 7, 2)


async def test_AdmitModelCall__calls_of_a_run_at_the_same_time_count_with_the_most_they_may_use(
    mesh: Mesh,
) -> None:
    """A worker that calls in parallel exceeds the budget by one call; then it is corrected."""
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=1000)
    session_id = held.session.session_id
    first = await spending.admit(held, tokens=600)
    assert (await spending.budget(session_id)).usage.token_count == 0
    second = await spending.admit(held, tokens=600)
    assert (await spending.budget(session_id)).usage.token_count == 600
    assert await refusal_of(spending.admit(held, tokens=600)) is Reason.SESSION_BUDGET_EXCEEDED
    assert (await spending.wait(held)).state == WAITING
    await spending.record(first, tokens=100)
    await spending.record(second, tokens=150)
    assert (await spending.budget(session_id)).usage.token_count == 250
    await wake(mesh)
    assert (await mesh.get(session_id)).latest_run.state == QUEUED, "there is room again"


async def test_RecordModelCall__a_call_that_nothing_reports_counts_with_the_most(
    mesh: Mesh, postgres: Any
) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=1000)
    session_id = held.session.session_id
    call_id = await spending.admit(held, tokens=600, cost=60)
    await expire(mesh, postgres)
    used = (await spending.budget(session_id)).usage
    assert (used.token_count, used.cost_micros) == (600, 60)
    await spending.record(call_id, tokens=1, cost=1)
    assert (await spending.budget(session_id)).usage == used, "it is too late"
    assert await rows(postgres, "select 1 from session.model_calls where call_id = %s", call_id) == []


async def test_RecordModelCall__a_call_that_is_counted_expires_without_a_second_count(
    mesh: Mesh, postgres: Any
) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=10_000)
    await spending.admit(held, tokens=600)
    await spending.admit(held, tokens=20)
    await expire(mesh, postgres)
    assert (await spending.budget(held.session.session_id)).usage.token_count == 620


async def test_RecordModelCall__counts_when_the_run_has_ended(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=1000)
    call_id = await spending.admit(held)
    await fail(mesh, held)
    await spending.record(call_id, tokens=5, cost=1)
    assert (await spending.budget(held.session.session_id)).usage.token_count == 5
    assert await refusal_of(spending.admit(held)) is Reason.RUN_LEASE_LOST


async def test_AdmitModelCall__a_waiting_run_makes_no_call(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.waiting_run()
    assert await refusal_of(spending.admit(held)) is Reason.RUN_LEASE_LOST


async def test_AdmitModelCall__a_family_at_work_exceeds_its_budget_by_one_call_of_each_run(
    mesh: Mesh,
) -> None:
    """Four runs call as fast as they can. Every call is counted, and the sum is exact."""
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    spending = Spending(mesh)
    root = await spending.held_run(max_cost_micros=100)
    children = [await mesh.claim((await mesh.spawn_as(root)).session_id) for _ in range(3)]
    made: list[int] = []
    refusals: list[Reason] = []

    async def work(held: run_pb.ClaimedRun) -> None:
        while True:
            try:
                call_id = await spending.admit(held)
            except MeshError as error:
                refusals.append(error.reason)
                return
            made.append(7)
            await spending.record(call_id, cost=7)

    await asyncio.gather(*(work(held) for held in (root, *children)))
    assert refusals == [Reason.SESSION_BUDGET_EXCEEDED] * 4
    used = (await spending.budget(root.session.session_id)).usage
    assert (used.cost_micros, used.model_call_count) == (sum(made), len(made))
    assert 100 <= used.cost_micros <= 100 + 4 * 7
