"""Budgets of a session service in the test's own process."""

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1.budget_service_pb2_grpc import (
    BudgetServiceServicer,
    add_BudgetServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.server import MeshServer


@dataclass
class FakeBudgets(BudgetServiceServicer):
    """Record the requests, and answer them with `usage` and its last budget.

    `refusal` answers all calls.
    """

    usage: pb.GetSessionUsageResponse = field(default_factory=pb.GetSessionUsageResponse)
    requests: list[Any] = field(default_factory=list)
    refusal: MeshError | None = None

    def add_to(self, server: MeshServer) -> None:
        """Register the RPCs for clients."""
        add_BudgetServiceServicer_to_server(self, server)

    async def GetSessionUsage(self, request: Any, context: Any) -> Any:
        self._note(request)
        return self.usage

    async def UpdateBudget(self, request: Any, context: Any) -> Any:
        self._note(request)
        return pb.UpdateBudgetResponse(budget=self.usage.budgets[-1])

    def _note(self, request: Any) -> None:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal


def used_up(session_id: str) -> pb.SessionBudget:
    """Return a budget of 0.50 of which 0.52 is used, and of 40 calls."""
    budget = pb.SessionBudget(
        session_id=session_id, etag="e1", updated_by="ada", reached_limits=[pb.BUDGET_LIMIT_COST]
    )
    budget.update_time.FromSeconds(1)
    budget.budget.CopyFrom(
        pb.Budget(max_cost_micros=500_000, max_model_call_count=40, max_run_time=Duration(seconds=600))
    )
    budget.usage.CopyFrom(
        pb.BudgetUsage(
            cost_micros=520_000, token_count=12_345, model_call_count=3, run_time=Duration(seconds=75)
        )
    )
    return budget
