"""The budget of the demo's job: it is used up early, and a person raises it."""

from collections.abc import Sequence

from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh.session.v1.session_pb2 import SessionEvent
from spawnmesh_client.budgets import get_usage
from spawnmesh_client.wire import WireMesh

FIRST_CALLS = 1
"""The model calls that the job may make at first: it waits before the second one, with nothing yet
in its workspace that is not in the transcript.
"""
_ENOUGH_CALLS = 1_000


def first_budget() -> budget_pb2.Budget:
    """Return the budget with which the job is spawned."""
    return budget_pb2.Budget(max_model_call_count=FIRST_CALLS)


async def budget_of(mesh: WireMesh, session_id: str) -> budget_pb2.SessionBudget | None:
    """Return the budget of the session itself, if it has one."""
    usage = await get_usage(mesh.service("session"), session_id)
    return next((one for one in usage.budgets if one.session_id == session_id), None)


async def raise_if_it_waits(mesh: WireMesh, session_id: str) -> None:
    """Raise the budget of the session if its run waits for it."""
    run = (await mesh.session(session_id)).latest_run
    if run.state == session_pb2.RUN_STATE_WAITING_BUDGET:
        peer = mesh.service("session")
        request = budget_pb2.UpdateBudgetRequest(
            session_id=session_id,
            budget=budget_pb2.Budget(max_model_call_count=_ENOUGH_CALLS),
            update_mask=FieldMask(paths=["max_model_call_count"]),
        )
        await peer.unary(BudgetServiceStub(peer.channel).UpdateBudget, request)


def wait_count(events: Sequence[SessionEvent]) -> int:
    """Return how often the runs of a session have waited for a budget."""
    return sum(event.run_state == session_pb2.RUN_STATE_WAITING_BUDGET for event in events)


def change_count(events: Sequence[SessionEvent]) -> int:
    """Return how often the budget of a session was changed."""
    return sum(event.kind == session_pb2.SESSION_EVENT_KIND_BUDGET_CHANGED for event in events)
