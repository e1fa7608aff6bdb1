"""RunService."""

from dataclasses import dataclass
from datetime import timedelta

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import run_service_pb2 as pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceServicer
from spawnmesh_runtime.caller import current_caller
from spawnmesh_runtime.tokens import SERVICE_TOKEN_SECONDS, TokenMinter

from spawnmesh_session.domain import Ending, RunState
from spawnmesh_session.operations.claim import Claimed, Leases
from spawnmesh_session.operations.finalize import FinalizeSaga, Pending, Revised
from spawnmesh_session.parse import no_nul, parse_draft, require_epoch, runtimes_of, usage_of, wait_of
from spawnmesh_session.render import render_agent, render_message, render_run, render_session, render_thinking

Context = grpc.aio.ServicerContext[object, object]
# So long may a run that was killed still spend and upload. Each heartbeat brings a new token, a fraction of a lease after the one before.
_TOKEN_LEASES = 4
_TOKEN_LEAST = timedelta(seconds=SERVICE_TOKEN_SECONDS)
_TOKEN_GRACE = timedelta(minutes=5)  # A run that is just being finalized at its deadline can still say so.


@dataclass(frozen=True, slots=True)
class RunServicer(RunServiceServicer):
    """What a runner needs."""

    leases: Leases
    saga: FinalizeSaga
    minter: TokenMinter

    async def ClaimRuns(self, request: pb.ClaimRunsRequest, context: Context) -> pb.ClaimRunsResponse:
        wait = wait_of(request.wait.ToTimedelta() if request.HasField("wait") else None, 0.0)
        claimed = await self.leases.claim(
            no_nul("runner_id", request.runner_id), request.max_run_count, wait, runtimes_of(request)
        )
        return pb.ClaimRunsResponse(runs=[self._render(one) for one in claimed])

    async def HeartbeatRun(self, request: pb.HeartbeatRunRequest, context: Context) -> pb.HeartbeatRunResponse:
        caller = current_caller()
        require_epoch(caller, request.epoch)
        renewed = await self.leases.heartbeat(caller.tenant_id, caller.run_id, request.epoch)
        stamp = Timestamp()
        stamp.FromDatetime(renewed.lease_end)
        token = self._token(caller.tenant_id, caller.session_id, caller.run_id, request.epoch, renewed.time_left)
        return pb.HeartbeatRunResponse(
            lease_expire_time=stamp, pending_message_count=renewed.waiting_count, run_token=token
        )

    async def ListInbox(self, request: pb.ListInboxRequest, context: Context) -> pb.ListInboxResponse:
        caller = current_caller()
        rows = await self.leases.list_inbox(caller.tenant_id, caller.session_id)
        return pb.ListInboxResponse(messages=[render_message(row) for row in rows])

    async def AcknowledgeInbox(
        self, request: pb.AcknowledgeInboxRequest, context: Context
    ) -> pb.AcknowledgeInboxResponse:
        caller = current_caller()
        require_epoch(caller, request.epoch)
        await self.leases.acknowledge_inbox(caller.tenant_id, caller.run_id, request.epoch, list(request.keys))
        return pb.AcknowledgeInboxResponse()

    async def FinalizeRun(self, request: pb.FinalizeRunRequest, context: Context) -> pb.FinalizeRunResponse:
        caller = current_caller()
        match await self.saga.run(caller.tenant_id, parse_draft(request, caller)):
            case Revised(instruction, number, most):
                revision = pb.Revision(instruction=instruction, number=number, max_revision_count=most)
                return pb.FinalizeRunResponse(revise=revision)
            case Pending(count):
                return pb.FinalizeRunResponse(messages_pending=pb.MessagesPending(count=count))
            case run:
                return pb.FinalizeRunResponse(accepted=pb.Accepted(run=render_run(run)))

    async def FailRun(self, request: pb.FailRunRequest, context: Context) -> pb.FailRunResponse:
        caller = current_caller()
        require_epoch(caller, request.epoch)
        ending = Ending(
            state=RunState.FAILED,
            error_reason=request.reason,
            error_message=request.message,
            usage=usage_of(request.usage) if request.HasField("usage") else None,
        )
        run = await self.saga.fail(caller.tenant_id, caller.run_id, request.epoch, ending)
        return pb.FailRunResponse(run=render_run(run))

    async def ReleaseRun(self, request: pb.ReleaseRunRequest, context: Context) -> pb.ReleaseRunResponse:
        caller = current_caller()
        require_epoch(caller, request.epoch)
        run = await self.leases.release(caller.tenant_id, caller.run_id, request.epoch)
        return pb.ReleaseRunResponse(run=render_run(run))

    def _token(self, tenant_id: str, session_id: str, run_id: str, epoch: int, time_left: timedelta) -> str:
        ttl = min(max(_TOKEN_LEAST, self.leases.lease_ttl * _TOKEN_LEASES), time_left + _TOKEN_GRACE)
        return self.minter.run_token(tenant_id, session_id, run_id, epoch, ttl.total_seconds())

    def _render(self, claimed: Claimed) -> pb.ClaimedRun:
        run, session = claimed.run, claimed.session
        lease, deadline, time_left = Duration(), Timestamp(), Duration()
        lease.FromTimedelta(self.leases.lease_ttl)
        time_left.FromTimedelta(run["time_left"])
        deadline.FromDatetime(run["deadline_time"])
        models = dict.fromkeys(model for model in (session["model"], *claimed.agent.models) if model)
        return pb.ClaimedRun(
            run=render_run(run),
            session=render_session(session),
            agent=render_agent(claimed.agent),
            models=models,
            run_token=self._token(
                claimed.tenant_id, session["session_id"], run["run_id"], run["epoch"], run["time_left"]
            ),
            lease_ttl=lease,
            deadline_time=deadline,
            time_left=time_left,
            traceparent=session["traceparent"],
            thinking=render_thinking(session["thinking"] or claimed.agent.thinking),
            tenant_id=claimed.tenant_id,
            first_epoch=run["first_epoch"],
        )
