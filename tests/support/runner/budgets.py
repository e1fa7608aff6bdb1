"""A session service that lets runs wait for their budgets, as a script says."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1 import budget_service_pb2_grpc as grpc
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.ids import IdKind, new_id

if TYPE_CHECKING:
    from tests.support.runner.scripted_mesh import ScriptedMesh

_HELD = (session_pb2.RUN_STATE_RUNNING, session_pb2.RUN_STATE_FINALIZING)


@dataclass(slots=True)
class BudgetScript:
    """The requests of runs that were refused a model call, and the states that they get."""

    states: deque[session_pb2.RunState.ValueType] = field(default_factory=deque)
    """The states of the run behind the requests. Without one it waits."""
    requests: list[pb.AwaitBudgetRequest] = field(default_factory=list)
    session_id: str = field(default_factory=lambda: new_id(IdKind.SESSION))
    """The session of the budget."""
    shared: tuple[str, ...] = ()
    """The sessions whose budgets the run shares, as its claim says."""
    epoch: int = 0
    """The epoch of the run in the answer, if it is not that of the request."""
    hold_answer: asyncio.Event | None = None
    """The answer to a request comes once it is set, although the run is given up before."""

    def add_to(self, server: Any, mesh: "ScriptedMesh") -> None:
        """Serve the RPC that runners call."""
        servicer: Any = _ScriptedBudgets  # To the type checker, it is abstract.
        grpc.add_BudgetServiceServicer_to_server(servicer(mesh), server)


class _ScriptedBudgets(grpc.BudgetServiceServicer):
    """Give the run up unless the script says that its budget has room."""

    def __init__(self, mesh: "ScriptedMesh") -> None:
        self.mesh = mesh

    async def AwaitBudget(self, request: pb.AwaitBudgetRequest, context: Any) -> pb.AwaitBudgetResponse:
        mesh, script = self.mesh, self.mesh.budgets
        mesh.check_lease(request.epoch)
        mesh.refuse_if_scripted("AwaitBudget")
        script.requests.append(request)
        state = script.states.popleft() if script.states else session_pb2.RUN_STATE_WAITING_BUDGET
        if state not in _HELD or script.epoch:
            mesh.approvals.waiting_epoch = request.epoch
        if script.hold_answer is not None:
            await script.hold_answer.wait()
        run = session_pb2.Run(run_id=mesh.run_id, epoch=script.epoch or request.epoch, state=state)
        if state == session_pb2.RUN_STATE_WAITING_BUDGET:
            run.budget_session_id = script.session_id
        return pb.AwaitBudgetResponse(run=run)
