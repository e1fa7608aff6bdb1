"""Model calls in budgets: admitted by what is used, counted once, and never for free."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Database
from spawnmesh_session.domain.job_kinds import EXPIRE_MODEL_CALL
from spawnmesh_session.store import sessions

from tests.support.session.budgets import QUEUED, WAITING, Spending, wake
from tests.support.session.calls import fail, send
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import OPEN, refusal_of
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


async def test_AdmitModelCall__the_time_before_a_release_counts_with_the_next_call(
    mesh: Mesh, postgres: Any
) -> None:
    """A worker that works without a call and gives the run back, again and again."""
    spending = Spending(mesh)
    held = await spending.held_run(max_run_time=Duration(seconds=100))
    for _ in range(2):
        async with superuser(postgres) as link:
            await link.execute(
                "update session.runs set counted_time = counted_time - interval '60 s' where run_id = %s",
                (held.run.run_id,),
            )
        await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
        held = await mesh.claim(held.session.session_id)
    assert await refusal_of(spending.admit(held)) is Reason.SESSION_BUDGET_EXCEEDED


async def test_RecordModelCall__no_time_counts_behind_the_end_of_the_lease(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_run_time=Duration(seconds=1000))
    call_id = await spending.admit(held)
    async with superuser(postgres) as link:
        for statement in (
            "update session.runs set counted_time = now() - interval '1 hour' where run_id = %s",
            "update session.run_queue set due_time = now() - interval '59 minutes' where run_id = %s",
        ):
            await link.execute(statement, (held.run.run_id,))
    await spending.record(call_id)
    used = (await spending.budget(held.session.session_id)).usage.run_time.ToTimedelta()
    assert timedelta(seconds=60) <= used < timedelta(seconds=120)


async def test_AdmitModelCall__a_repeat_that_is_late_counts_nothing(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=50_000)
    call_id = await spending.admit(held, tokens=5000)
    await spending.record(call_id, tokens=7)
    await spending.admit(held, call_id, tokens=5000)
    await expire(mesh, postgres)
    used = (await spending.budget(held.session.session_id)).usage
    assert (used.model_call_count, used.token_count) == (1, 7)


async def test_AdmitModelCall__the_id_of_a_call_of_another_run_is_refused(mesh: Mesh) -> None:
    spending = Spending(mesh)
    first, second = [await spending.held_run(max_token_count=50_000) for _ in range(2)]
    call_id = await spending.admit(first)
    assert await refusal_of(spending.admit(second, call_id)) is Reason.INVALID_REQUEST


async def test_AdmitModelCall__a_runner_that_was_taken_over_makes_no_call(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=50_000)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(held.session.session_id)
    assert await refusal_of(spending.admit(held, epoch=held.run.epoch)) is Reason.RUN_LEASE_LOST
    await spending.admit(again, epoch=again.run.epoch)


@pytest.mark.parametrize("tokens", [10**15 + 1, 2**63 - 1])
async def test_RecordModelCall__usage_that_no_call_can_have_is_refused(mesh: Mesh, tokens: int) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_token_count=50_000)
    assert await refusal_of(spending.admit(held, tokens=tokens)) is Reason.INVALID_REQUEST
    call_id = await spending.admit(held)
    assert await refusal_of(spending.record(call_id, tokens=tokens)) is Reason.INVALID_REQUEST


async def test_RecordModelCall__usage_stays_at_the_largest_number(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=9)
    async with superuser(postgres) as link:
        await link.execute(
            "update session.budgets set used_token_count = 9000000000000000000 where session_id = %s",
            (held.session.session_id,),
        )
    await spending.call(held, tokens=10**15)
    assert (await spending.budget(held.session.session_id)).usage.token_count == 9 * 10**18


async def test_AdmitModelCall__a_repeat_counts_once(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=5)
    call_id = await spending.admit(held)
    assert await spending.admit(held, call_id) == call_id
    await spending.record(call_id, tokens=7, cost=2)
    await spending.record(call_id, tokens=7, cost=2)
    used = (await spending.budget(held.session.session_id)).usage
    assert (used.model_call_count, used.token_count, used.cost_micros) == (1, 7, 2)


async def test_AdmitModelCall__does_not_wait_for_a_transaction_that_locks_the_session(
    mesh: Mesh, session_database: Database
) -> None:
    """Such a transaction may wait for the budget, which the call has locked: a deadlock."""
    spending = Spending(mesh)
    held = await spending.held_run(max_model_call_count=3)
    async with session_database.transaction(mesh.tenant) as other:
        assert await sessions.lock_session(other, mesh.tenant, held.session.session_id)
        async with asyncio.timeout(60):
            await spending.admit(held)
    assert (await spending.budget(held.session.session_id)).usage.model_call_count == 1


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


async def test_AdmitModelCall__calls_of_ended_runs_count_with_the_most_they_may_use(
    mesh: Mesh, postgres: Any
) -> None:
    """A worker that ends its run before a call is reported, and begins another one."""
    spending = Spending(mesh)
    held = await spending.held_run(spawn={"mode": OPEN}, max_token_count=1000)
    session_id, calls = held.session.session_id, []
    for _ in range(2):
        calls.append(await spending.admit(held, tokens=900))
        await fail(mesh, held)
        await send(mesh, session_id)
        held = await mesh.claim(session_id)
    assert await refusal_of(spending.admit(held, tokens=900)) is Reason.SESSION_BUDGET_EXCEEDED
    assert (await spending.budget(session_id)).usage.token_count == 1800
    for call_id in calls:
        await spending.record(call_id, tokens=5)
    await expire(mesh, postgres)
    assert (await spending.budget(session_id)).usage.token_count == 10
    await spending.admit(held)


async def test_DeleteSession__the_calls_of_a_deleted_child_count_in_the_budgets_above(
    mesh: Mesh, postgres: Any
) -> None:
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))
    spending = Spending(mesh)
    root = await spending.held_run(max_token_count=1000)
    limits = pb.Budget(max_token_count=5000)
    reported, lost, counted = [
        await mesh.claim((await mesh.spawn_as(root, budget=limits)).session_id) for _ in range(3)
    ]
    first = await spending.admit(reported, tokens=900)
    await spending.admit(lost, tokens=30)
    third = await spending.admit(counted, tokens=900)
    await spending.admit(counted, tokens=0)
    for child in (reported, lost, counted):
        request = session_pb.DeleteSessionRequest(session_id=child.session.session_id)
        await mesh.client(mesh.sessions.DeleteSession, request)
    await spending.record(first, tokens=7)
    await spending.record(third, tokens=2)
    await expire(mesh, postgres)
    used = (await spending.budget(root.session.session_id)).usage
    assert (used.token_count, used.model_call_count) == (39, 4)


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
