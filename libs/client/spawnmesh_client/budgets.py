"""Budgets in the messages of the contract: their limits, and the calls about them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from types import EllipsisType
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub

from spawnmesh_client.budget_views import Budget
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.view_of import duration_of

_MICROS = 1_000_000
_FIELDS = {
    "cost": "max_cost_micros",
    "tokens": "max_token_count",
    "calls": "max_model_call_count",
    "run_time": "max_run_time",
    "wait": "max_wait",
}


async def get_usage(peer: TokenPeer, session_id: str) -> pb.GetSessionUsageResponse:
    """Return what a session and its descendants have used, and the budgets that they share.

    Raises NOT_FOUND.
    """
    request = pb.GetSessionUsageRequest(session_id=session_id)
    answer: pb.GetSessionUsageResponse = await peer.unary(
        BudgetServiceStub(peer.channel).GetSessionUsage, request
    )
    return answer


async def update_budget(
    peer: TokenPeer, session_id: str, budget: pb.Budget, paths: Sequence[str], *, etag: str = ""
) -> pb.SessionBudget:
    """Change the fields in `paths` of the budget of a session, and return it; with an etag, this
    version alone.

    Raises BUDGET_MISSING, BUDGET_BELOW_USAGE, ETAG_DIFFERS and NOT_FOUND.
    """
    request = pb.UpdateBudgetRequest(
        session_id=session_id, budget=budget, update_mask=FieldMask(paths=paths), etag=etag
    )
    answer: pb.UpdateBudgetResponse = await peer.unary(BudgetServiceStub(peer.channel).UpdateBudget, request)
    return answer.budget


def budget_message(budget: Budget) -> pb.Budget:
    """Return the message of a budget.

    Raises ValueError for a limit that is 0 or negative, for a part of a token or a call, and for a
    cost below a millionth.
    """
    return _message({name: getattr(budget, name) for name in _FIELDS})


def changed_budget(limits: Mapping[str, Any]) -> tuple[pb.Budget, list[str]]:
    """Return the message of the limits that change, and the paths of its fields.

    `...` is a limit that does not change, and None one that is removed. Raises ValueError as
    `budget_message`, and if no limit changes.
    """
    changed = {name: value for name, value in limits.items() if not isinstance(value, EllipsisType)}
    if not changed:
        raise ValueError(f"name a limit that changes: {', '.join(_FIELDS)}")
    return _message(changed), [_FIELDS[name] for name in changed]


def _message(limits: Mapping[str, Any]) -> pb.Budget:
    message = pb.Budget()
    for name, value in limits.items():
        if value is None:
            continue
        if name in ("run_time", "wait"):
            getattr(message, _FIELDS[name]).CopyFrom(_duration(name, value))
        else:
            setattr(message, _FIELDS[name], _micros(value) if name == "cost" else _count(name, value))
    return message


def _micros(cost: float | Decimal) -> int:
    micros = Decimal(str(cost)) * _MICROS
    if not micros.is_finite() or micros < 1:
        raise ValueError(f"cost is at least a millionth, not {cost}; without a limit it is None")
    return round(micros)


def _count(name: str, value: float) -> int:
    if value != int(value) or value <= 0:
        raise ValueError(f"{name} is a whole number above 0, not {value}; without a limit it is None")
    return int(value)


def _duration(name: str, value: timedelta | float) -> Duration:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not (seconds > 0 or (name == "wait" and seconds == 0)):
        raise ValueError(f"{name} is a time above 0, not {value}; without a limit it is None")
    return duration_of(seconds)
