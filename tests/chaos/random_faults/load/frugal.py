"""Clients whose sessions have small budgets, and people who raise the budgets that are used up."""

import asyncio
import json

from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh_devstack.scripted_agents import CALLER

from tests.chaos.random_faults.load.calls import Client

FRUGAL = "frugal"
"""The label of the sessions with budgets."""
_CHILD = "sessions_spawn " + json.dumps({"task": "Say something.", "label": "child"})
_KILLED, _INTERRUPTED, _NOT_AWAITED = 0.1, 0.2, 0.5
"""As for careful sessions."""
_WITH_TOKENS = 0.4
_FEW_TOKENS = 50
_ENOUGH_TOKENS = 1_000_000
_LEFT_FOR_LATER = 0.3
_WITH_ETAG = 0.5


async def spend_steadily(client: Client) -> None:
    """Spawn families whose budgets are used up. Wait for some, and kill and interrupt some."""
    while not client.stop.is_set():
        budget = pb.Budget(max_model_call_count=client.random.randrange(1, 4))
        if client.random.random() < _WITH_TOKENS:
            budget.max_token_count = _FEW_TOKENS
        request = client.spawn_request(_CHILD, agent_id=CALLER, label=FRUGAL, budget=budget)
        drawn = client.random.random()
        if session_id := await client.spawn(request):
            if drawn < _INTERRUPTED:
                await client.pause(0.0, 4.0)
                await (client.kill if drawn < _KILLED else client.interrupt)(session_id)
            elif drawn >= _NOT_AWAITED:
                await client.wait(session_id)
        await client.pause(0.5, 2.0)


async def raise_steadily(client: Client) -> None:
    """Raise the budgets for which runs of the tenant wait, again and again. It never returns."""
    while True:
        await client.pause(0.3, 1.5)
        waiting = sorted(await _used_up(client))
        chosen = [one for one in waiting if client.random.random() >= _LEFT_FOR_LATER]
        await asyncio.gather(*(_raise(client, session_id) for session_id in chosen))


async def _used_up(client: Client) -> set[str]:
    """Return the sessions for whose budgets runs wait; none if the service does not answer."""
    request = session_rpc.ListSessionsRequest(filter="run_state = WAITING_BUDGET", page_size=100)
    _, answer = await client.call("list", client.sessions.ListSessions, request)
    return {one.latest_run.budget_session_id for one in answer.sessions} - {""} if answer else set()


async def _raise(client: Client, session_id: str) -> None:
    """Raise each limit that is reached, and repeat that until it is answered."""
    stub = BudgetServiceStub(client.mesh.service("session").channel)
    usage = pb.GetSessionUsageRequest(session_id=session_id)
    _, answer = await client.call("list", stub.GetSessionUsage, usage)
    own = next((one for one in answer.budgets if one.session_id == session_id), None) if answer else None
    if own is None or not own.reached_limits:
        return
    raised = pb.Budget(
        max_model_call_count=own.usage.model_call_count + client.random.randrange(1, 4),
        max_token_count=_ENOUGH_TOKENS if own.budget.max_token_count else 0,
    )
    request = pb.UpdateBudgetRequest(
        session_id=session_id,
        budget=raised,
        update_mask=FieldMask(paths=["max_model_call_count", "max_token_count"]),
        etag=own.etag if client.random.random() < _WITH_ETAG else "",
    )
    await client.insist("raise", stub.UpdateBudget, request, session_id=session_id, **limits_of(raised))


def limits_of(budget: pb.Budget) -> dict[str, int]:
    """Return the limits that these clients set, by the names of their columns."""
    return {
        "max_model_call_count": budget.max_model_call_count,
        "max_token_count": budget.max_token_count,
    }
