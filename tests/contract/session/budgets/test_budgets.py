"""Budgets: set at a spawn, shared by a family, counted by model calls, and changed by people."""

from typing import Any

import jwt
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import budget_service_pb2 as service_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.session.budgets import Spending, events_until
from tests.support.session.calls import fail
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import beat, refusal_of
from tests.support.session.tables import superuser

CHANGED = session_pb2.SESSION_EVENT_KIND_BUDGET_CHANGED


async def spawner(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="default", spawnable_agents=["default"]))


async def test_SpawnSession__a_budget_is_kept_and_shown(mesh: Mesh) -> None:
    spending = Spending(mesh)
    limits = pb.Budget(
        max_token_count=1000,
        max_cost_micros=500_000,
        max_model_call_count=7,
        max_run_time=Duration(seconds=90),
        max_wait=Duration(seconds=60),
    )
    session = await mesh.spawn(budget=limits)
    assert list(session.budget_session_ids) == [session.session_id]
    answer = await spending.usage(session.session_id)
    [budget] = answer.budgets
    assert (budget.session_id, budget.budget) == (session.session_id, limits)
    assert budget.usage == pb.BudgetUsage(run_time=Duration())
    assert (list(budget.reached_limits), budget.updated_by) == ([], "")
    assert (answer.session.session_count, answer.session.ended_run_count) == (1, 0)


async def test_SpawnSession__without_a_budget_nothing_is_counted(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await mesh.claim((await mesh.spawn()).session_id)
    assert not held.session.budget_session_ids
    await spending.call(held, tokens=10)
    assert not (await spending.usage(held.session.session_id)).budgets
    assert await refusal_of(spending.raise_limits(held.session.session_id, max_cost_micros=1)) is (
        Reason.BUDGET_MISSING
    )


@pytest.mark.parametrize(
    "limits",
    [
        pb.Budget(),
        pb.Budget(max_wait=Duration(seconds=5)),
        pb.Budget(max_token_count=-1),
        pb.Budget(max_cost_micros=-1),
        pb.Budget(max_model_call_count=-1),
        pb.Budget(max_token_count=1, max_run_time=Duration(seconds=-1)),
        pb.Budget(max_token_count=1, max_wait=Duration(seconds=2592001)),
        pb.Budget(max_token_count=1, max_run_time=Duration(nanos=400)),
        pb.Budget(max_token_count=1, max_wait=Duration(nanos=400)),
    ],
    ids=[
        *("none", "wait only", "tokens", "cost", "calls", "time", "long wait"),
        *("moment of time", "moment of wait"),
    ],
)
async def test_SpawnSession__a_budget_that_makes_no_sense_is_refused(mesh: Mesh, limits: pb.Budget) -> None:
    assert await refusal_of(mesh.spawn(budget=limits)) is Reason.INVALID_REQUEST


async def test_SpawnSession__a_repeat_with_another_budget_is_another_request(mesh: Mesh) -> None:
    first = await mesh.spawn(request_id="one", budget=pb.Budget(max_token_count=5))
    again = await mesh.spawn(request_id="one", budget=pb.Budget(max_token_count=5))
    assert again.session_id == first.session_id
    other = mesh.spawn(request_id="one", budget=pb.Budget(max_token_count=6))
    assert await refusal_of(other) is Reason.REQUEST_ID_REUSED


async def test_AdmitModelCall__a_family_shares_the_budgets_of_all_its_ancestors(mesh: Mesh) -> None:
    """A child without a budget, and a grandchild with one of its own."""
    await spawner(mesh)
    spending = Spending(mesh)
    root = await spending.held_run(max_cost_micros=100)
    child = await mesh.claim((await mesh.spawn_as(root)).session_id)
    own = pb.Budget(max_cost_micros=30)
    grandchild = await mesh.claim((await mesh.spawn_as(child, budget=own)).session_id)
    root_id, grandchild_id = root.session.session_id, grandchild.session.session_id
    assert list(child.session.budget_session_ids) == [root_id]
    assert list(grandchild.session.budget_session_ids) == [root_id, grandchild_id]

    await spending.call(root, cost=20)
    await spending.call(child, cost=40)
    await spending.call(grandchild, cost=30)
    assert (await spending.budget(root_id)).usage.cost_micros == 90
    assert (await spending.budget(grandchild_id)).usage.cost_micros == 30
    with pytest.raises(MeshError) as refused:
        await spending.admit(grandchild)
    assert refused.value.reason is Reason.SESSION_BUDGET_EXCEEDED
    assert refused.value.facts["session_id"] == grandchild_id
    assert refused.value.facts["limits"] == "COST"
    await spending.call(child, cost=10)
    for held in (root, child, grandchild):
        with pytest.raises(MeshError) as refused:
            await spending.admit(held)
        assert refused.value.facts["session_id"] == root_id, "the outermost is named"


async def test_GetSessionUsage__a_run_sees_no_budget_above_its_own_session(mesh: Mesh) -> None:
    await spawner(mesh)
    spending = Spending(mesh)
    root = await spending.held_run(max_cost_micros=100)
    limits = pb.Budget(max_token_count=30)
    child = await mesh.claim((await mesh.spawn_as(root, budget=limits)).session_id)
    root_id, child_id = root.session.session_id, child.session.session_id

    async def seen(held: run_pb.ClaimedRun, session_id: str) -> list[str]:
        request = pb.GetSessionUsageRequest(session_id=session_id)
        answer = await mesh.run(held, spending.stub.GetSessionUsage, request)
        return [one.session_id for one in answer.budgets]

    assert await seen(child, child_id) == [child_id]
    assert await seen(root, child_id) == [root_id, child_id]
    assert await seen(root, root_id) == [root_id]
    assert await refusal_of(seen(child, root_id)) is Reason.NOT_FOUND
    assert [one.session_id for one in (await spending.usage(child_id)).budgets] == [root_id, child_id]


async def test_GetSessionUsage__sums_the_ended_runs_of_the_family(mesh: Mesh) -> None:
    await spawner(mesh)
    spending = Spending(mesh)
    root = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.claim((await mesh.spawn_as(root)).session_id)
    grandchild = await mesh.claim((await mesh.spawn_as(child)).session_id)
    for number, held in enumerate((grandchild, child), 1):
        usage = TokenUsage(
            input_token_count=10 * number,
            output_token_count=number,
            cost_micros=7,
            price_version=f"v{number}",
        )
        request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=153, message="x", usage=usage)
        await mesh.run(held, mesh.runs.FailRun, request)
    answer = await spending.usage(root.session.session_id)
    assert answer.session == pb.UsageTotal(usage=TokenUsage(), session_count=1)
    assert answer.family == pb.UsageTotal(
        usage=TokenUsage(input_token_count=30, output_token_count=3, cost_micros=14, price_version="v2"),
        session_count=3,
        ended_run_count=2,
    )
    assert not answer.is_family_partial
    assert (await mesh.get(child.session.session_id)).latest_run.usage.cost_micros == 7


@pytest.mark.parametrize("field", ["input_token_count", "cost_micros"])
async def test_FailRun__usage_that_no_run_can_have_is_refused(mesh: Mesh, field: str) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    for value in (-1, 10**15 + 1, 2**63 - 1):
        usage = TokenUsage(**{field: value})
        request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=153, message="x", usage=usage)
        refused = mesh.run(held, mesh.runs.FailRun, request)
        assert await refusal_of(refused) is Reason.INVALID_REQUEST, value


async def test_GetSessionUsage__sums_that_are_too_large_are_shown_as_the_largest(
    mesh: Mesh, postgres: Any
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    await fail(mesh, held)
    async with superuser(postgres) as link:
        await link.execute(
            "update session.runs set usage = %s where run_id = %s",
            ('{"cost_micros": 99999999999999999999999}', held.run.run_id),
        )
    total = (await Spending(mesh).usage(held.session.session_id)).family
    assert total.usage.cost_micros == 9 * 10**18


async def test_UpdateBudget__only_named_limits_change_and_each_change_is_an_event(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_cost_micros=500_000, max_token_count=9)
    session_id = held.session.session_id
    before = await spending.budget(session_id)
    changed = await spending.raise_limits(session_id, max_cost_micros=1_250_000)
    assert (changed.budget.max_cost_micros, changed.budget.max_token_count) == (1_250_000, 9)
    assert (changed.updated_by, changed.etag != before.etag) == ("ada", True)
    unlimited = await spending.raise_limits(session_id, mask=["max_token_count", "max_wait"])
    assert (unlimited.budget.max_token_count, unlimited.budget.max_wait.seconds) == (0, 7 * 86_400)
    same = await spending.raise_limits(session_id, max_cost_micros=1_250_000, by="bob")
    assert (same.etag, same.updated_by) == (unlimited.etag, "ada"), "nothing changed"
    last = "tokens 9 -> no limit by ada"
    seen = await events_until(mesh, session_id, lambda event: event.detail == last)
    changes = [event.detail for event in seen if event.kind == CHANGED]
    assert changes == ["cost 0.50 -> 1.25 by ada", last]


async def test_UpdateBudget__a_limit_below_the_use_and_an_old_etag_change_nothing(mesh: Mesh) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_cost_micros=100)
    session_id = held.session.session_id
    await spending.call(held, cost=60)
    first = await spending.budget(session_id)
    with pytest.raises(MeshError) as refused:
        await spending.raise_limits(session_id, max_cost_micros=59)
    assert refused.value.reason is Reason.BUDGET_BELOW_USAGE
    assert (refused.value.facts["used"], refused.value.facts["wanted"]) == ("0.00006", "0.000059")
    assert await spending.budget(session_id) == first
    await spending.raise_limits(session_id, max_cost_micros=60, etag=first.etag)
    assert await refusal_of(spending.admit(held)) is Reason.SESSION_BUDGET_EXCEEDED, "it stops the family"
    late = spending.raise_limits(session_id, max_cost_micros=900, etag=first.etag)
    assert await refusal_of(late) is Reason.ETAG_DIFFERS
    await spending.raise_limits(session_id, max_cost_micros=70)
    await spending.call(held, cost=50)
    own = await spending.raise_limits(session_id, max_wait=Duration(seconds=9), max_token_count=5000)
    assert own.budget.max_cost_micros == 70, "one that is exceeded can stay as it is"
    for mask in (["session_id"], ["max_run_time.seconds"], ["*", "max_wait"]):
        assert await refusal_of(spending.raise_limits(session_id, mask=mask)) is Reason.INVALID_REQUEST


async def test_HeartbeatRun__keeps_the_token_one_of_a_run_with_a_budget(mesh: Mesh) -> None:
    """The claim of the token is all that the router knows."""
    spending = Spending(mesh)
    held = await spending.held_run(max_cost_micros=100)
    request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    renewed = (await mesh.run(held, mesh.runs.HeartbeatRun, request)).run_token
    for token in (held.run_token, renewed):
        assert jwt.decode(token, options={"verify_signature": False})["budget"] is True
    plain = await mesh.claim((await mesh.spawn()).session_id)
    assert "budget" not in jwt.decode(plain.run_token, options={"verify_signature": False})


async def test_DeleteSession__leaves_no_budget_and_no_open_call(mesh: Mesh, postgres: Any) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_cost_micros=100)
    call_id = await spending.admit(held)
    await fail(mesh, held)
    await mesh.client(
        mesh.sessions.DeleteSession, session_pb.DeleteSessionRequest(session_id=held.session.session_id)
    )
    async with superuser(postgres) as link:
        for table, column in (("budgets", "session_id"), ("model_calls", "session_id")):
            found = await link.execute(
                f"select count(*) from session.{table} where {column} = %s",
                (held.session.session_id,),
            )
            assert await found.fetchone() == (0,), table
        found = await link.execute("select count(*) from session.jobs where key = %s", (call_id,))
        assert await found.fetchone() == (0,)
    await spending.record(call_id, cost=5)  # It changes nothing.


async def test_AdmitModelCall__of_another_tenant_or_session_is_not_found(mesh: Mesh, open_mesh: Any) -> None:
    spending = Spending(mesh)
    held = await spending.held_run(max_cost_micros=100)
    other = await spending.held_run(max_cost_micros=100)
    request = service_pb.AdmitModelCallRequest(
        call_id=new_id(IdKind.MODEL_CALL),
        session_id=other.session.session_id,
        run_id=held.run.run_id,
        expires_in=Duration(seconds=9),
    )
    assert await refusal_of(spending.as_router(spending.stub.AdmitModelCall, request)) is Reason.NOT_FOUND
    call_id = await spending.admit(held)
    await mesh.create_tenant("t-stranger-1")
    await spending.record(call_id, cost=50, tenant="t-stranger-1")
    assert (await spending.budget(held.session.session_id)).usage.cost_micros == 0
    refused = spending.usage(held.session.session_id, tenant="t-stranger-1")
    assert await refusal_of(refused) is Reason.NOT_FOUND
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED
