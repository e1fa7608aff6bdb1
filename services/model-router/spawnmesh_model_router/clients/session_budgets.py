"""Calls of the session service: count model calls in the budgets of sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_service_pb2 as service_pb
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process

from spawnmesh_model_router.domain.charges import ChargedUsage
from spawnmesh_model_router.domain.run_calls import RunCall

_ADMIT_SECONDS = 3.0
"""For one answer. Far more than the session service needs, unless its database is busy."""
_RECORD_SECONDS = 10.0
"""Longer: the next call of the run counts this one with the most that it can use until then."""
_MOST = 10**15
"""The largest number that the contract accepts."""


@dataclass(frozen=True, slots=True)
class SessionBudgets:
    """The budgets that the sessions of runs share."""

    peer: Peer

    async def admit(self, call: RunCall) -> None:
        """Count the call, which is durable on return. A repeat counts once.

        Raises MeshError SESSION_BUDGET_EXCEEDED, RUN_LEASE_LOST, and that of the connection.
        """
        expires_in = Duration()
        expires_in.FromNanoseconds(round(call.expires_in_seconds * 1e9))
        request = service_pb.AdmitModelCallRequest(
            call_id=call.call_id,
            session_id=call.session_id,
            run_id=call.run_id,
            largest_token_count=min(call.largest_token_count, _MOST),
            largest_cost_micros=min(call.largest_cost_micros, _MOST),
            expires_in=expires_in,
            epoch=call.epoch,
        )
        with impersonate(call.tenant_id):
            method = BudgetServiceStub(self.peer.channel).AdmitModelCall
            await self.peer.unary(method, request, timeout_seconds=_ADMIT_SECONDS)

    async def record(self, call: RunCall, charged: ChargedUsage) -> None:
        """Record what the call used, which is durable on return. A repeat changes nothing.

        Raises the MeshError of the connection.
        """
        request = service_pb.RecordModelCallRequest(
            call_id=call.call_id,
            token_count=min(charged.token_count, _MOST),
            cost_micros=min(charged.cost_micros, _MOST),
        )
        with impersonate(call.tenant_id):
            method = BudgetServiceStub(self.peer.channel).RecordModelCall
            await self.peer.unary(method, request, timeout_seconds=_RECORD_SECONDS)


@asynccontextmanager
async def open_session_budgets(process: Process, target: str | None) -> AsyncIterator[SessionBudgets | None]:
    """Open the connection. Give None without a target.

    Raises SystemExit with one line if the process has no key to call the session service with.
    """
    if not target:
        yield None
        return
    if process.minter is None:
        raise SystemExit(f"{process.service}: signing_key_file is needed to call the session service")
    async with open_peer(process, "session", target, is_dependency=False) as peer:
        yield SessionBudgets(peer)
