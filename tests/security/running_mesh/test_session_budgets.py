"""Budgets belong to people: no agent, no reader, no other tenant and no client of a model changes them."""

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from spawnmesh.session.v1 import budget_pb2 as budgets
from spawnmesh.session.v1 import budget_service_pb2 as budget_calls
from spawnmesh.session.v1 import run_service_pb2 as runs
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh_client.budgets import get_usage
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.caller import CallerKind, ClientRole
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.security.every_rpc import Answer, RunningMesh, ask
from tests.support.security.raw_calls import METHODS
from tests.support.security.tenants import Filled, settled_rows

HIGHER = budgets.Budget(max_token_count=10**12)
SERVICES = ("attachment-blob", "hook", "transcript")
"""The services that make no model calls, whose keys sign tokens."""


async def call(running: RunningMesh, method: str, token: str, request: Message) -> Answer:
    described = METHODS[f"spawnmesh.session.v1.{method}"]
    return await ask(running.channels["session"], described, token, request.SerializeToString())


async def refusal(running: RunningMesh, method: str, token: str, request: Message) -> tuple[str, str]:
    answer = await call(running, f"BudgetService.{method}", token, request)
    return answer.code, answer.reason or ""


def update(tenant: Filled) -> budgets.UpdateBudgetRequest:
    return budgets.UpdateBudgetRequest(session_id=tenant.ids["session"], budget=HIGHER)


def admit(tenant: Filled, call_id: str = "") -> budget_calls.AdmitModelCallRequest:
    return budget_calls.AdmitModelCallRequest(
        call_id=call_id or new_id(IdKind.MODEL_CALL),
        session_id=tenant.ids["session"],
        run_id=tenant.ids["run"],
        largest_token_count=7,
        expires_in=Duration(seconds=3_600),
    )


def record(tenant: Filled) -> budget_calls.RecordModelCallRequest:
    return budget_calls.RecordModelCallRequest(call_id=tenant.ids["call_id"], token_count=1)


async def run_state(tenant: Filled, run_id: str) -> Mapping[str, Any]:
    async with await psycopg.AsyncConnection.connect(tenant.stack.superuser_dsn) as connection:
        cursor = await connection.execute(
            "select state, epoch from session.runs where tenant_id = %s and run_id = %s",
            (tenant.tenant_id, run_id),
        )
        row = await cursor.fetchone()
    assert row is not None
    return dict(zip(("state", "epoch"), row, strict=True))


async def claimed_child(tenant: Filled) -> runs.ClaimedRun:
    """Spawn a child session with a budget that is reached at once, and claim its run."""
    async with tenant.connected(tenant.token(CallerKind.CLIENT)) as client:
        budget = budgets.Budget(max_model_call_count=1)
        await client.spawn("x", agent_id=tenant.ids["agent"], budget=budget)
    async with tenant.connected(tenant.token(CallerKind.RUNNER)) as runner:
        peer = runner.service("session")
        request = runs.ClaimRunsRequest(runner_id="tester", max_run_count=1, wait=Duration(seconds=20))
        answer = await peer.unary(RunServiceStub(peer.channel).ClaimRuns, request, timeout_seconds=60)
    (claimed,) = answer.runs
    found: runs.ClaimedRun = claimed
    return found


async def usage(client: WireMesh, session_id: str) -> budgets.SessionBudget:
    (own,) = (await get_usage(client.service("session"), session_id)).budgets
    return own


async def test_the_budget_of_another_tenant_is_not_found(
    running: RunningMesh, attacker: Filled, victim: Filled
) -> None:
    before = await settled_rows(victim)
    token = attacker.token(CallerKind.CLIENT)
    read = budgets.GetSessionUsageRequest(session_id=victim.ids["session"])
    for method, request in (("GetSessionUsage", read), ("UpdateBudget", update(victim))):
        assert await refusal(running, method, token, request) == ("NOT_FOUND", "NOT_FOUND")
    router = attacker.token(CallerKind.SERVICE, "model-router")
    admitted = await call(running, "BudgetService.AdmitModelCall", router, admit(victim))
    assert admitted.reason in ("NOT_FOUND", "RUN_LEASE_LOST")  # As for a run that does not exist.
    unknown = admit(victim)
    unknown.run_id = new_id(IdKind.RUN)
    asked = await call(running, "BudgetService.AdmitModelCall", router, unknown)
    assert (asked.code, asked.reason) == (admitted.code, admitted.reason)
    # It is a call that the tenant of the token does not have.
    assert (await call(running, "BudgetService.RecordModelCall", router, record(victim))).code == "OK"
    assert (await settled_rows(victim)) == before


async def test_no_run_and_no_reader_raises_a_budget(running: RunningMesh, victim: Filled) -> None:
    async with victim.connected(victim.token(CallerKind.CLIENT)) as client:
        before = await usage(client, victim.ids["session"])
        run = await refusal(running, "UpdateBudget", victim.token(CallerKind.RUN), update(victim))
        assert run == ("PERMISSION_DENIED", "CALLER_NOT_ALLOWED")
        reader = victim.token(CallerKind.CLIENT, role=ClientRole.READER)
        assert await refusal(running, "UpdateBudget", reader, update(victim)) == (
            "PERMISSION_DENIED",
            "ROLE_MISSING",
        )
        assert await usage(client, victim.ids["session"]) == before
        read = budgets.GetSessionUsageRequest(session_id=victim.ids["session"])
        assert (await call(running, "BudgetService.GetSessionUsage", reader, read)).code == "OK"


async def test_only_the_router_counts_model_calls(running: RunningMesh, victim: Filled) -> None:
    async with victim.connected(victim.token(CallerKind.CLIENT)) as client:
        before = await usage(client, victim.ids["session"])
        tokens = [victim.token(kind) for kind in (CallerKind.CLIENT, CallerKind.RUN, CallerKind.RUNNER)]
        tokens += [victim.token(CallerKind.ADMIN)]
        tokens += [victim.token(CallerKind.SERVICE, service) for service in SERVICES]
        for token in tokens:
            for method, request in (("AdmitModelCall", admit(victim)), ("RecordModelCall", record(victim))):
                assert await refusal(running, method, token, request) == (
                    "PERMISSION_DENIED",
                    "CALLER_NOT_ALLOWED",
                )
        assert await usage(client, victim.ids["session"]) == before


@pytest.mark.timeout(300)
async def test_a_run_gives_up_itself_alone(running: RunningMesh, victim: Filled) -> None:
    """The token names the run. That of another session, or of an earlier epoch, parks nothing."""
    claimed = await claimed_child(victim)
    run = claimed.run
    router = victim.token(CallerKind.SERVICE, "model-router")
    only = budget_calls.AdmitModelCallRequest(
        call_id=new_id(IdKind.MODEL_CALL),
        session_id=run.session_id,
        run_id=run.run_id,
        expires_in=Duration(seconds=3_600),
    )
    assert (await call(running, "BudgetService.AdmitModelCall", router, only)).code == "OK"
    before = await run_state(victim, run.run_id)
    minter = TokenMinter("session", victim.stack.keys / "session.pem")
    awaits = budgets.AwaitBudgetRequest(epoch=run.epoch)
    other = await call(running, "BudgetService.AwaitBudget", victim.token(CallerKind.RUN), awaits)
    assert run.run_id.encode() not in other.seen
    stale = minter.run_token(victim.tenant_id, run.session_id, run.run_id, run.epoch + 1, 3_600)
    forged = budgets.AwaitBudgetRequest(epoch=run.epoch + 1)
    assert (await refusal(running, "AwaitBudget", stale, forged))[1] == "RUN_LEASE_LOST"
    assert await run_state(victim, run.run_id) == before
    answer = await call(running, "BudgetService.AwaitBudget", claimed.run_token, awaits)
    assert answer.code == "OK", answer
    assert (await run_state(victim, run.run_id))["state"] == "WAITING_BUDGET"
