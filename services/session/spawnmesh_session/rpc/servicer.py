"""The gRPC servicers, which forward each call to the module of its RPC."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc
from google.longrunning.operations_pb2 import Operation
from spawnmesh.session.v1 import approval_service_pb2 as approval_pb
from spawnmesh.session.v1 import budget_pb2 as budget_pb
from spawnmesh.session.v1 import budget_service_pb2 as service_pb
from spawnmesh.session.v1 import output_pb2 as output_pb
from spawnmesh.session.v1 import schedule_service_pb2 as schedule_pb
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1 import token_service_pb2 as token_pb
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceServicer
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceServicer
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceServicer
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceServicer
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceServicer
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_session.rpc.admit_model_call import admit_model_call
from spawnmesh_session.rpc.archive_session import archive_session
from spawnmesh_session.rpc.await_budget import await_budget
from spawnmesh_session.rpc.create_tenant import create_tenant
from spawnmesh_session.rpc.decide_approval import decide_approval
from spawnmesh_session.rpc.delete_agent import delete_agent
from spawnmesh_session.rpc.delete_schedule import delete_schedule
from spawnmesh_session.rpc.delete_session import delete_session
from spawnmesh_session.rpc.delete_tenant import delete_tenant
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.enable_hooks import enable_hooks
from spawnmesh_session.rpc.enable_shared_hooks import enable_shared_hooks
from spawnmesh_session.rpc.get_agent import get_agent
from spawnmesh_session.rpc.get_approval import get_approval
from spawnmesh_session.rpc.get_schedule import get_schedule
from spawnmesh_session.rpc.get_session import get_session
from spawnmesh_session.rpc.get_session_usage import get_session_usage
from spawnmesh_session.rpc.get_tenant import get_tenant
from spawnmesh_session.rpc.get_tenant_status import get_tenant_status
from spawnmesh_session.rpc.interrupt_run import interrupt_run
from spawnmesh_session.rpc.kill_session import kill_session
from spawnmesh_session.rpc.list_agents import list_agents
from spawnmesh_session.rpc.list_approvals import list_approvals
from spawnmesh_session.rpc.list_output_sets import list_output_sets
from spawnmesh_session.rpc.list_schedule_firings import list_schedule_firings
from spawnmesh_session.rpc.list_schedules import list_schedules
from spawnmesh_session.rpc.list_sessions import list_sessions
from spawnmesh_session.rpc.list_tenants import list_tenants
from spawnmesh_session.rpc.pause_schedule import pause_schedule
from spawnmesh_session.rpc.record_model_call import record_model_call
from spawnmesh_session.rpc.resume_schedule import resume_schedule
from spawnmesh_session.rpc.revoke_token import revoke_token
from spawnmesh_session.rpc.run_schedule import run_schedule
from spawnmesh_session.rpc.send_message import send_message
from spawnmesh_session.rpc.spawn_session import spawn_session
from spawnmesh_session.rpc.update_agent import update_agent
from spawnmesh_session.rpc.update_budget import update_budget
from spawnmesh_session.rpc.update_schedule import update_schedule
from spawnmesh_session.rpc.update_tenant import update_tenant
from spawnmesh_session.rpc.wait_session import wait_session
from spawnmesh_session.rpc.watch_call_limits import watch_call_limits
from spawnmesh_session.rpc.watch_revoked_tokens import watch_revoked_tokens
from spawnmesh_session.rpc.watch_session import watch_session

Context = grpc.aio.ServicerContext[object, object]


@dataclass(frozen=True, slots=True)
class SessionServicer(SessionServiceServicer):
    """Forwards the RPCs of SessionService."""

    deps: Dependencies

    async def SpawnSession(
        self, request: session_pb.SpawnSessionRequest, context: Context
    ) -> session_pb.SpawnSessionResponse:
        return await spawn_session(request, current_caller(), self.deps)

    async def GetSession(
        self, request: session_pb.GetSessionRequest, context: Context
    ) -> session_pb.GetSessionResponse:
        return await get_session(request, current_caller(), self.deps)

    async def ListSessions(
        self, request: session_pb.ListSessionsRequest, context: Context
    ) -> session_pb.ListSessionsResponse:
        return await list_sessions(request, current_caller(), self.deps)

    async def ListOutputSets(
        self, request: output_pb.ListOutputSetsRequest, context: Context
    ) -> output_pb.ListOutputSetsResponse:
        return await list_output_sets(request, current_caller(), self.deps)

    async def WaitSession(
        self, request: session_pb.WaitSessionRequest, context: Context
    ) -> session_pb.WaitSessionResponse:
        return await wait_session(request, current_caller(), self.deps)

    async def WatchSession(
        self, request: session_pb.WatchSessionRequest, context: Context
    ) -> AsyncIterator[session_pb.WatchSessionResponse]:
        async with aclosing(watch_session(request, current_caller(), self.deps)) as responses:
            async for response in responses:
                yield response

    async def SendMessage(
        self, request: session_pb.SendMessageRequest, context: Context
    ) -> session_pb.SendMessageResponse:
        return await send_message(request, current_caller(), self.deps)

    async def InterruptRun(
        self, request: session_pb.InterruptRunRequest, context: Context
    ) -> session_pb.InterruptRunResponse:
        return await interrupt_run(request, current_caller(), self.deps)

    async def KillSession(
        self, request: session_pb.KillSessionRequest, context: Context
    ) -> session_pb.KillSessionResponse:
        return await kill_session(request, current_caller(), self.deps)

    async def ArchiveSession(
        self, request: session_pb.ArchiveSessionRequest, context: Context
    ) -> session_pb.ArchiveSessionResponse:
        return await archive_session(request, current_caller(), self.deps)

    async def DeleteSession(
        self, request: session_pb.DeleteSessionRequest, context: Context
    ) -> session_pb.DeleteSessionResponse:
        return await delete_session(request, current_caller(), self.deps)


@dataclass(frozen=True, slots=True)
class ApprovalServicer(ApprovalServiceServicer):
    """Forwards the RPCs of ApprovalService."""

    deps: Dependencies

    async def ListApprovals(
        self, request: approval_pb.ListApprovalsRequest, context: Context
    ) -> approval_pb.ListApprovalsResponse:
        return await list_approvals(request, current_caller(), self.deps)

    async def GetApproval(
        self, request: approval_pb.GetApprovalRequest, context: Context
    ) -> approval_pb.GetApprovalResponse:
        return await get_approval(request, current_caller(), self.deps)

    async def DecideApproval(
        self, request: approval_pb.DecideApprovalRequest, context: Context
    ) -> approval_pb.DecideApprovalResponse:
        return await decide_approval(request, current_caller(), self.deps)


@dataclass(frozen=True, slots=True)
class BudgetServicer(BudgetServiceServicer):
    """Forwards the RPCs of BudgetService."""

    deps: Dependencies

    async def GetSessionUsage(
        self, request: budget_pb.GetSessionUsageRequest, context: Context
    ) -> budget_pb.GetSessionUsageResponse:
        return await get_session_usage(request, current_caller(), self.deps)

    async def UpdateBudget(
        self, request: budget_pb.UpdateBudgetRequest, context: Context
    ) -> budget_pb.UpdateBudgetResponse:
        return await update_budget(request, current_caller(), self.deps)

    async def AwaitBudget(
        self, request: budget_pb.AwaitBudgetRequest, context: Context
    ) -> budget_pb.AwaitBudgetResponse:
        return await await_budget(request, current_caller(), self.deps)

    async def AdmitModelCall(
        self, request: service_pb.AdmitModelCallRequest, context: Context
    ) -> service_pb.AdmitModelCallResponse:
        return await admit_model_call(request, current_caller(), self.deps)

    async def RecordModelCall(
        self, request: service_pb.RecordModelCallRequest, context: Context
    ) -> service_pb.RecordModelCallResponse:
        return await record_model_call(request, current_caller(), self.deps)


@dataclass(frozen=True, slots=True)
class TenantServicer(TenantServiceServicer):
    """Forwards the RPCs of TenantService."""

    deps: Dependencies

    async def CreateTenant(
        self, request: tenant_pb.CreateTenantRequest, context: Context
    ) -> tenant_pb.CreateTenantResponse:
        return await create_tenant(request, current_caller(), self.deps)

    async def UpdateTenant(
        self, request: tenant_pb.UpdateTenantRequest, context: Context
    ) -> tenant_pb.UpdateTenantResponse:
        return await update_tenant(request, current_caller(), self.deps)

    async def GetTenant(
        self, request: tenant_pb.GetTenantRequest, context: Context
    ) -> tenant_pb.GetTenantResponse:
        return await get_tenant(request, current_caller(), self.deps)

    async def GetTenantStatus(
        self, request: tenant_pb.GetTenantStatusRequest, context: Context
    ) -> tenant_pb.GetTenantStatusResponse:
        return await get_tenant_status(request, current_caller(), self.deps)

    async def DeleteTenant(self, request: tenant_pb.DeleteTenantRequest, context: Context) -> Operation:
        return await delete_tenant(request, current_caller(), self.deps)

    async def ListTenants(
        self, request: tenant_pb.ListTenantsRequest, context: Context
    ) -> tenant_pb.ListTenantsResponse:
        return await list_tenants(request, current_caller(), self.deps)

    async def WatchCallLimits(
        self, request: tenant_pb.WatchCallLimitsRequest, context: Context
    ) -> AsyncIterator[tenant_pb.WatchCallLimitsResponse]:
        async with aclosing(watch_call_limits(request, self.deps)) as responses:
            async for response in responses:
                yield response

    async def EnableHooks(
        self, request: tenant_pb.EnableHooksRequest, context: Context
    ) -> tenant_pb.EnableHooksResponse:
        return await enable_hooks(request, self.deps)

    async def EnableSharedHooks(
        self, request: tenant_pb.EnableSharedHooksRequest, context: Context
    ) -> tenant_pb.EnableSharedHooksResponse:
        return await enable_shared_hooks(request, self.deps)

    async def UpdateAgent(
        self, request: tenant_pb.UpdateAgentRequest, context: Context
    ) -> tenant_pb.UpdateAgentResponse:
        return await update_agent(request, current_caller(), self.deps)

    async def GetAgent(
        self, request: tenant_pb.GetAgentRequest, context: Context
    ) -> tenant_pb.GetAgentResponse:
        return await get_agent(request, current_caller(), self.deps)

    async def ListAgents(
        self, request: tenant_pb.ListAgentsRequest, context: Context
    ) -> tenant_pb.ListAgentsResponse:
        return await list_agents(request, current_caller(), self.deps)

    async def DeleteAgent(
        self, request: tenant_pb.DeleteAgentRequest, context: Context
    ) -> tenant_pb.DeleteAgentResponse:
        return await delete_agent(request, current_caller(), self.deps)


@dataclass(frozen=True, slots=True)
class TokenServicer(TokenServiceServicer):
    """Forwards the RPCs of TokenService."""

    deps: Dependencies

    async def RevokeToken(
        self, request: token_pb.RevokeTokenRequest, context: Context
    ) -> token_pb.RevokeTokenResponse:
        return await revoke_token(request, current_caller(), self.deps)

    async def WatchRevokedTokens(
        self, request: token_pb.WatchRevokedTokensRequest, context: Context
    ) -> AsyncIterator[token_pb.WatchRevokedTokensResponse]:
        async with aclosing(watch_revoked_tokens(request, self.deps)) as responses:
            async for response in responses:
                yield response


@dataclass(frozen=True, slots=True)
class ScheduleServicer(ScheduleServiceServicer):
    """Forwards the RPCs of ScheduleService."""

    deps: Dependencies

    async def UpdateSchedule(
        self, request: schedule_pb.UpdateScheduleRequest, context: Context
    ) -> schedule_pb.UpdateScheduleResponse:
        return await update_schedule(request, current_caller(), self.deps)

    async def GetSchedule(
        self, request: schedule_pb.GetScheduleRequest, context: Context
    ) -> schedule_pb.GetScheduleResponse:
        return await get_schedule(request, current_caller(), self.deps)

    async def ListSchedules(
        self, request: schedule_pb.ListSchedulesRequest, context: Context
    ) -> schedule_pb.ListSchedulesResponse:
        return await list_schedules(request, current_caller(), self.deps)

    async def PauseSchedule(
        self, request: schedule_pb.PauseScheduleRequest, context: Context
    ) -> schedule_pb.PauseScheduleResponse:
        return await pause_schedule(request, current_caller(), self.deps)

    async def ResumeSchedule(
        self, request: schedule_pb.ResumeScheduleRequest, context: Context
    ) -> schedule_pb.ResumeScheduleResponse:
        return await resume_schedule(request, current_caller(), self.deps)

    async def DeleteSchedule(
        self, request: schedule_pb.DeleteScheduleRequest, context: Context
    ) -> schedule_pb.DeleteScheduleResponse:
        return await delete_schedule(request, current_caller(), self.deps)

    async def RunSchedule(
        self, request: schedule_pb.RunScheduleRequest, context: Context
    ) -> schedule_pb.RunScheduleResponse:
        return await run_schedule(request, current_caller(), self.deps)

    async def ListScheduleFirings(
        self, request: schedule_pb.ListScheduleFiringsRequest, context: Context
    ) -> schedule_pb.ListScheduleFiringsResponse:
        return await list_schedule_firings(request, current_caller(), self.deps)
