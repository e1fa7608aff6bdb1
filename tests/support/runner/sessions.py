"""The session service, as far as the tools of a runner call it."""

import hashlib
from typing import TYPE_CHECKING, Any

from spawnmesh.session.v1 import output_pb2, session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1 import session_service_pb2_grpc as session_grpc
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.telemetry import current_traceparent

if TYPE_CHECKING:
    from tests.support.runner.scripted_mesh import ScriptedMesh


class ScriptedSessions(session_grpc.SessionServiceServicer):
    """Spawns are remembered by their request_id. Every awaited session has ended."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def SpawnSession(
        self, request: session_pb.SpawnSessionRequest, context: Any
    ) -> session_pb.SpawnSessionResponse:
        self.mesh.spawn_traces.append(current_traceparent())
        self.mesh.refuse_if_scripted("SpawnSession without a child")
        first = self.mesh.spawns.setdefault(request.request_id, request)
        if first != request:
            raise MeshError(Reason.REQUEST_ID_REUSED, "another payload")
        self.mesh.refuse_if_scripted("SpawnSession")
        return session_pb.SpawnSessionResponse(session=child_of(request))

    async def ListSessions(
        self, request: session_pb.ListSessionsRequest, context: Any
    ) -> session_pb.ListSessionsResponse:
        """Return the child with the request_id."""
        assert request.include_archived
        self.mesh.refuse_if_scripted("ListSessions")
        spawned = [spawn for key, spawn in self.mesh.spawns.items() if key == request.request_id]
        children = [child_of(spawn) for spawn in spawned]
        if request.request_id in self.mesh.provisioning_request_ids:
            for child in children:
                child.state = session_pb2.SESSION_STATE_PROVISIONING
        return session_pb.ListSessionsResponse(sessions=children)

    async def ListOutputSets(
        self, request: output_pb2.ListOutputSetsRequest, context: Any
    ) -> output_pb2.ListOutputSetsResponse:
        assert request.session_id == self.mesh.session_id
        self.mesh.refuse_if_scripted("ListOutputSets")
        return self.mesh.outputs.list(request)

    async def WaitSession(
        self, request: session_pb.WaitSessionRequest, context: Any
    ) -> session_pb.WaitSessionResponse:
        self.mesh.refuse_if_scripted("WaitSession")
        self.mesh.wait_called.set()
        if self.mesh.hold_wait is not None:
            await self.mesh.hold_wait.wait()
        self.mesh.waits.append(request)
        if self.mesh.child_states:
            run = session_pb2.Run(state=self.mesh.child_states.popleft())
            if run.state == session_pb2.RUN_STATE_WAITING_BUDGET:
                run.budget_session_id = self.mesh.budgets.session_id
            return session_pb.WaitSessionResponse(
                session=session_pb2.Session(session_id=request.session_id, latest_run=run)
            )
        return session_pb.WaitSessionResponse(
            done=True,
            session=session_pb2.Session(
                session_id=request.session_id,
                state=session_pb2.SESSION_STATE_CLOSED,
                latest_run=session_pb2.Run(state=session_pb2.RUN_STATE_SUCCEEDED),
            ),
        )


def child_of(request: session_pb.SpawnSessionRequest) -> session_pb2.Session:
    """Return the session that such a spawn creates."""
    digest = hashlib.sha256(request.request_id.encode()).hexdigest()[:26]
    return session_pb2.Session(
        session_id=f"ses_{digest}",
        state=session_pb2.SESSION_STATE_ACTIVE,
        task_hash=hashlib.sha256(request.task.encode()).hexdigest(),
        latest_run=session_pb2.Run(run_id=f"run_{digest}", state=session_pb2.RUN_STATE_QUEUED),
    )
