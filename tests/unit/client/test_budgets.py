"""Budgets through the client, against services in this process."""

import pickle
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh_client import (
    Budget,
    BudgetLimit,
    BudgetUsage,
    FailedPrecondition,
    Mesh,
    MeshError,
    Reason,
    RunNotDone,
    connect,
)
from spawnmesh_client.budget_texts import cost_text, time_text
from spawnmesh_client.budget_views import budget_view
from spawnmesh_client.budgets import budget_message
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.budgets import used_up
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]

PARENT_ID = "ses_00000000000000000000000000"


@pytest.fixture
async def client(mesh: FakeMesh, keys: Path) -> AsyncIterator[Mesh]:
    token = TokenMinter("client", keys / "client.pem").client_token("acme", "test", 60)
    async with connect(targets=mesh.targets, token=token) as connected:
        yield connected


async def test_spawn_sends_the_limits_that_are_given(mesh: FakeMesh, client: Mesh) -> None:
    await client.spawn("Work.", budget=Budget(0.5, 200_000, 40, timedelta(minutes=10), timedelta(hours=2)))
    await client.spawn("Work.", budget=Budget(cost=Decimal("0.000001"), run_time=1.5, wait=0))
    await client.spawn("Work.")
    first, second, third = (request.budget for request in mesh.sessions.requests)
    assert first == budget_pb2.Budget(
        max_cost_micros=500_000, max_token_count=200_000, max_model_call_count=40,
        max_run_time=Duration(seconds=600), max_wait=Duration(seconds=7200),
    )  # fmt: skip
    assert second == budget_pb2.Budget(
        max_cost_micros=1, max_run_time=Duration(seconds=1, nanos=500_000_000), max_wait=Duration()
    )
    assert (second.HasField("max_wait"), first.HasField("max_wait")) == (True, True)
    assert (third, mesh.sessions.requests[2].HasField("budget")) == (budget_pb2.Budget(), False)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"cost": 0}, "cost is at least a millionth, not 0"),
        ({"cost": -0.5}, "cost is at least a millionth"),
        ({"cost": 0.0000004}, "cost is at least a millionth"),
        ({"cost": float("nan")}, "cost is at least a millionth"),
        ({"cost": float("inf")}, "cost is at least a millionth"),
        ({"tokens": 0}, "tokens is a whole number above 0, not 0"),
        ({"calls": -1}, "calls is a whole number above 0"),
        ({"calls": 1.5}, "calls is a whole number above 0"),
        ({"run_time": timedelta()}, "run_time is a time above 0"),
        ({"wait": -1}, "wait is a time above 0"),
        ({}, "name a limit that changes: cost, tokens, calls, run_time, wait"),
    ],
)
async def test_limit_that_would_be_none_is_refused_before_any_call(
    mesh: FakeMesh, client: Mesh, limits: dict[str, Any], said: str
) -> None:
    session = await client.session(SESSION_ID)
    with pytest.raises(ValueError, match=said):
        await session.set_budget(**limits)
    if limits:
        with pytest.raises(ValueError, match=said):
            await client.spawn("Work.", budget=Budget(**limits))
    assert (mesh.budgets.requests, mesh.sessions.requests) == ([], [])


async def test_GetSessionUsage__is_a_view_of_the_session_the_family_and_all_budgets(
    mesh: FakeMesh, client: Mesh
) -> None:
    answer = mesh.budgets.usage
    parents = used_up(PARENT_ID)
    parents.budget.Clear()
    parents.budget.max_token_count, parents.budget.max_wait.seconds = 7, 90
    answer.budgets.extend([parents, used_up(SESSION_ID)])
    answer.session.usage.output_token_count, answer.session.usage.cost_micros = 12, 250_000
    answer.session.usage.price_version = "2026-11"
    answer.family.session_count, answer.family.ended_run_count, answer.is_family_partial = 3, 5, True

    usage = await (await client.session(SESSION_ID)).usage()

    assert (usage.session.usage.output_token_count, usage.session.usage.cost) == (12, 0.25)
    assert usage.session.usage.price_version == "2026-11"
    assert (usage.family.session_count, usage.family.ended_run_count, usage.is_family_partial) == (3, 5, True)
    first, own = usage.budgets
    assert (first.session_id, own.session_id) == (PARENT_ID, SESSION_ID)
    assert first.budget == Budget(tokens=7, wait=timedelta(seconds=90))
    assert own.budget == Budget(cost=0.5, calls=40, run_time=timedelta(minutes=10))
    assert own.usage == BudgetUsage(0.52, 12_345, 3, timedelta(seconds=75))
    assert own.reached == (BudgetLimit.COST,)
    assert (own.etag, own.updated_by, own.update_time) == ("e1", "ada", datetime.fromtimestamp(1, UTC))
    assert mesh.budgets.requests[0].session_id == SESSION_ID
    own_message = used_up(SESSION_ID)
    assert budget_message(own.budget) == own_message.budget, "a view can be written as it was read"


async def test_UpdateBudget__changes_the_named_limits_alone(mesh: FakeMesh, client: Mesh) -> None:
    mesh.budgets.usage.budgets.append(used_up(SESSION_ID))
    session = await client.session(SESSION_ID)

    changed = await session.set_budget(cost=1.0, calls=60, etag="e1")
    await session.set_budget(cost=None, wait=timedelta(0))
    await session.set_budget(tokens=5, run_time=60)

    assert (changed.session_id, changed.etag) == (SESSION_ID, "e1")
    first, second, third = mesh.budgets.requests
    assert (first.session_id, first.etag, second.etag) == (SESSION_ID, "e1", "")
    assert list(first.update_mask.paths) == ["max_cost_micros", "max_model_call_count"]
    assert first.budget == budget_pb2.Budget(max_cost_micros=1_000_000, max_model_call_count=60)
    assert list(second.update_mask.paths) == ["max_cost_micros", "max_wait"]
    assert (second.budget, second.budget.HasField("max_wait")) == (
        budget_pb2.Budget(max_wait=Duration()),
        True,
    )
    assert list(third.update_mask.paths) == ["max_token_count", "max_run_time"]


async def test_UpdateBudget__refusal_is_a_failed_precondition_with_its_facts(
    mesh: FakeMesh, client: Mesh
) -> None:
    facts = {"limit": "COST", "used": "0.52", "wanted": "0.10"}
    mesh.budgets.refusal = MeshError(Reason.BUDGET_BELOW_USAGE, "below", facts=facts)
    session = await client.session(SESSION_ID)
    with pytest.raises(FailedPrecondition) as below:
        await session.set_budget(cost=0.1)
    assert below.value.reason is Reason.BUDGET_BELOW_USAGE
    assert facts.items() <= below.value.facts.items()


async def test_run_that_waits_is_not_done_and_names_the_session_of_the_budget(
    mesh: FakeMesh, client: Mesh
) -> None:
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_WAITING_BUDGET, budget_session_id=PARENT_ID)
    mesh.sessions.outcome.budget_session_ids.append(PARENT_ID)
    mesh.sessions.known = [mesh.sessions.outcome]
    session = await client.spawn("Work.")
    with pytest.raises(RunNotDone, match=f"waits until the budget of {PARENT_ID} is raised") as late:
        await session.result(timeout=0)
    again = pickle.loads(pickle.dumps(late.value))
    for error in (late.value, again):
        assert (error.state, error.budget_session_id, error.approval_id) == ("WAITING_BUDGET", PARENT_ID, "")
    seen = await session.refresh()
    assert seen.latest_run is not None
    assert (seen.budget_session_ids, seen.latest_run.budget_session_id) == ((PARENT_ID,), PARENT_ID)
    assert (await client.wire.wait(SESSION_ID, 0)).session.latest_run.budget_session_id == PARENT_ID


async def test_wait_awaits_what_is_called_with_each_session(mesh: FakeMesh, client: Mesh) -> None:
    seen: list[str] = []

    async def note(session: session_pb2.Session) -> None:
        seen.append(session.session_id)

    await client.wire.wait(SESSION_ID, 30, note)
    assert seen == [SESSION_ID]


def test_limit_of_a_newer_mesh_is_unknown() -> None:
    one = budget_pb2.SessionBudget()
    one.MergeFromString(b"\x22\x01\x63")  # reached_limits = [99]
    assert budget_view(one).reached == (BudgetLimit.UNKNOWN,)


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0.00"), (500_000, "0.50"), (520_001, "0.520001"), (1, "0.000001"), (12_345_600_000, "12345.60")],
)
def test_cost_has_two_decimals_or_as_many_as_it_needs(micros: int, text: str) -> None:
    assert cost_text(micros) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1.5, "1.5s"),
        (59.25, "59.25s"),
        (60, "1m"),
        (75.9, "1m15s"),
        (5400, "1h30m"),
        (90_000, "1d1h"),
    ],
)
def test_time_is_written_as_it_is_typed(seconds: float, text: str) -> None:
    assert time_text(timedelta(seconds=seconds)) == text
