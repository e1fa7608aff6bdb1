"""The servicer of RunService, which forwards each call to the module of its RPC."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc
from spawnmesh.session.v1 import approval_pb2 as approvals_pb
from spawnmesh.session.v1 import output_pb2 as output_pb
from spawnmesh.session.v1 import run_event_pb2 as run_event_pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_session.rpc.acknowledge_inbox import acknowledge_inbox
from spawnmesh_session.rpc.claim_runs import claim_runs
from spawnmesh_session.rpc.dependencies import Dependencies
from spawnmesh_session.rpc.end_interrupted_run import end_interrupted_run
from spawnmesh_session.rpc.fail_run import fail_run
from spawnmesh_session.rpc.finalize_run import finalize_run
from spawnmesh_session.rpc.heartbeat_run import heartbeat_run
from spawnmesh_session.rpc.list_inbox import list_inbox
from spawnmesh_session.rpc.publish_files import publish_files
from spawnmesh_session.rpc.release_run import release_run
from spawnmesh_session.rpc.report_run_events import report_run_events
from spawnmesh_session.rpc.request_approval import request_approval
from spawnmesh_session.rpc.take_decision import take_decision
from spawnmesh_session.rpc.watch_run_changes import watch_run_changes

Context = grpc.aio.ServicerContext[object, object]


@dataclass(frozen=True, slots=True)
class RunServicer(RunServiceServicer):
    """Forwards the RPCs of RunService."""

    deps: Dependencies

    async def ClaimRuns(self, request: run_pb.ClaimRunsRequest, context: Context) -> run_pb.ClaimRunsResponse:
        return await claim_runs(request, current_caller(), self.deps)

    async def HeartbeatRun(
        self, request: run_pb.HeartbeatRunRequest, context: Context
    ) -> run_pb.HeartbeatRunResponse:
        return await heartbeat_run(request, current_caller(), self.deps)

    async def ListInbox(self, request: run_pb.ListInboxRequest, context: Context) -> run_pb.ListInboxResponse:
        return await list_inbox(request, current_caller(), self.deps)

    async def AcknowledgeInbox(
        self, request: run_pb.AcknowledgeInboxRequest, context: Context
    ) -> run_pb.AcknowledgeInboxResponse:
        return await acknowledge_inbox(request, current_caller(), self.deps)

    async def FinalizeRun(
        self, request: run_pb.FinalizeRunRequest, context: Context
    ) -> run_pb.FinalizeRunResponse:
        return await finalize_run(request, current_caller(), self.deps)

    async def WatchRunChanges(
        self, request: run_pb.WatchRunChangesRequest, context: Context
    ) -> AsyncIterator[run_pb.WatchRunChangesResponse]:
        async with aclosing(watch_run_changes(request, current_caller(), self.deps)) as responses:
            async for response in responses:
                yield response

    async def EndInterruptedRun(
        self, request: run_pb.EndInterruptedRunRequest, context: Context
    ) -> run_pb.EndInterruptedRunResponse:
        return await end_interrupted_run(request, current_caller(), self.deps)

    async def FailRun(self, request: run_pb.FailRunRequest, context: Context) -> run_pb.FailRunResponse:
        return await fail_run(request, current_caller(), self.deps)

    async def RequestApproval(
        self, request: approvals_pb.RequestApprovalRequest, context: Context
    ) -> approvals_pb.RequestApprovalResponse:
        return await request_approval(request, current_caller(), self.deps)

    async def PublishFiles(
        self, request: output_pb.PublishFilesRequest, context: Context
    ) -> output_pb.PublishFilesResponse:
        return await publish_files(request, current_caller(), self.deps)

    async def TakeDecision(
        self, request: approvals_pb.TakeDecisionRequest, context: Context
    ) -> approvals_pb.TakeDecisionResponse:
        return await take_decision(request, current_caller(), self.deps)

    async def ReleaseRun(
        self, request: run_pb.ReleaseRunRequest, context: Context
    ) -> run_pb.ReleaseRunResponse:
        return await release_run(request, current_caller(), self.deps)

    async def ReportRunEvents(
        self, request: run_event_pb.ReportRunEventsRequest, context: Context
    ) -> run_event_pb.ReportRunEventsResponse:
        return await report_run_events(request, current_caller(), self.deps)
