"""Budgets: sessions that have one, model calls as the router reports them, and waiting runs."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import budget_service_pb2 as service_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_session.domain.job_kinds import WAKE_BUDGET

from tests.support.serving import client_tokens
from tests.support.session.harness import Mesh
from tests.support.session.worker import job_worker_of

WAITING = session_pb2.RUN_STATE_WAITING_BUDGET
QUEUED, RUNNING = session_pb2.RUN_STATE_QUEUED, session_pb2.RUN_STATE_RUNNING
FAILED, INTERRUPTED, KILLED = (
    session_pb2.RUN_STATE_FAILED,
    session_pb2.RUN_STATE_INTERRUPTED,
    session_pb2.RUN_STATE_KILLED,
)


@dataclass(frozen=True)
class Spending:
    """The calls of BudgetService, each as the caller that may make it."""

    mesh: Mesh

    @property
    def stub(self) -> Any:
        return BudgetServiceStub(self.mesh.peer.channel)

    async def as_router(self, call: Callable[..., Any], request: Any, tenant: str = "") -> Any:
        minter = TokenMinter("model-router", self.mesh.keys / "model-router.pem")
        with use_token(minter.service_token(tenant or self.mesh.tenant)):
            return await self.mesh.peer.unary(call, request, timeout_seconds=60.0)

    async def admit(
        self,
        held: run_pb.ClaimedRun,
        call_id: str = "",
        *,
        tokens: int = 1000,
        cost: int = 10_000,
        seconds: int = 600,
        epoch: int = 0,
    ) -> str:
        """Admit a call of the run, and return its id."""
        request = service_pb.AdmitModelCallRequest(
            call_id=call_id or new_id(IdKind.MODEL_CALL),
            session_id=held.session.session_id,
            run_id=held.run.run_id,
            largest_token_count=tokens,
            largest_cost_micros=cost,
            epoch=epoch,
        )
        request.expires_in.FromSeconds(seconds)
        await self.as_router(self.stub.AdmitModelCall, request)
        return request.call_id

    async def record(self, call_id: str, *, tokens: int = 0, cost: int = 0, tenant: str = "") -> None:
        request = service_pb.RecordModelCallRequest(call_id=call_id, token_count=tokens, cost_micros=cost)
        await self.as_router(self.stub.RecordModelCall, request, tenant)

    async def call(self, held: run_pb.ClaimedRun, *, tokens: int = 0, cost: int = 0) -> None:
        """Make a model call of the run that uses so much."""
        await self.record(await self.admit(held), tokens=tokens, cost=cost)

    async def wait(self, held: run_pb.ClaimedRun, **fields: Any) -> session_pb2.Run:
        """Give the run up until its budgets have room."""
        request = pb.AwaitBudgetRequest(epoch=held.run.epoch, **fields)
        run: session_pb2.Run = (await self.mesh.run(held, self.stub.AwaitBudget, request)).run
        return run

    async def usage(self, session_id: str, *, tenant: str = "") -> pb.GetSessionUsageResponse:
        request = pb.GetSessionUsageRequest(session_id=session_id)
        answer: pb.GetSessionUsageResponse = await self.mesh.client(
            self.stub.GetSessionUsage, request, tenant=tenant
        )
        return answer

    async def budget(self, session_id: str) -> pb.SessionBudget:
        """Return the budget of the session itself."""
        [own] = [one for one in (await self.usage(session_id)).budgets if one.session_id == session_id]
        return own

    async def raise_limits(
        self,
        session_id: str,
        *,
        etag: str = "",
        mask: list[str] | None = None,
        by: str = "ada",
        **limits: Any,
    ) -> pb.SessionBudget:
        request = pb.UpdateBudgetRequest(
            session_id=session_id,
            budget=pb.Budget(**limits),
            update_mask={"paths": mask} if mask else None,
            etag=etag,
        )
        with use_token(client_tokens(self.mesh.keys).client_token(self.mesh.tenant, by, 600)):
            answer = await self.mesh.peer.unary(self.stub.UpdateBudget, request, timeout_seconds=60.0)
        budget: pb.SessionBudget = answer.budget
        return budget

    async def held_run(self, *, spawn: dict[str, Any] | None = None, **limits: Any) -> run_pb.ClaimedRun:
        """Return the held run of a new session with these limits."""
        session = await self.mesh.spawn(budget=pb.Budget(**limits), **(spawn or {}))
        return await self.mesh.claim(session.session_id)

    async def waiting_run(self, *, spawn: dict[str, Any] | None = None, **limits: Any) -> run_pb.ClaimedRun:
        """Return a run that waits after its one allowed model call."""
        held = await self.held_run(spawn=spawn, max_model_call_count=1, **limits)
        await self.call(held)
        assert (await self.wait(held)).state == WAITING
        return held


async def events_until(
    mesh: Mesh, session_id: str, is_last: Callable[[session_pb2.SessionEvent], bool]
) -> list[session_pb2.SessionEvent]:
    """Return the events of the session up to the one that is the last."""
    request = session_pb.WatchSessionRequest(session_id=session_id)
    seen: list[session_pb2.SessionEvent] = []
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        stream = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        async with aclosing(stream) as told:
            async for answer in told:
                seen.append(answer.session_event)
                if is_last(answer.session_event):
                    return seen
    raise AssertionError(f"the stream ended with {seen[-1:]}")


async def wake(mesh: Mesh) -> None:
    """Do the jobs that queue runs whose budgets have room."""
    async with job_worker_of(mesh.settings) as worker:
        await worker.run_due(WAKE_BUDGET)
