"""A session service that lets runs wait for a person, as a script says."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id


@dataclass(slots=True)
class ScriptedApprovals:
    """The requests of approvals, and what was decided on them."""

    requests: list[pb.RequestApprovalRequest] = field(default_factory=list)
    decided: dict[bytes, pb.TakeDecisionResponse] = field(default_factory=dict)
    taken: list[pb.TakeDecisionRequest] = field(default_factory=list)
    waiting_epoch: int = 0
    """The epoch of the runner that gave the run up last."""
    late_heartbeat_count: int = 0
    hold_answer: asyncio.Event | None = None
    """The answer to a request comes once it is set, although the run is given up before."""

    async def request(self, request: pb.RequestApprovalRequest) -> pb.RequestApprovalResponse:
        self.requests.append(request)
        self.waiting_epoch = request.epoch
        if self.hold_answer is not None:
            await self.hold_answer.wait()
        return pb.RequestApprovalResponse(approval=pb.Approval(approval_id=new_id(IdKind.APPROVAL)))

    def note_heartbeat(self, epoch: int) -> None:
        """Count a heartbeat of a runner that has given the run up."""
        self.late_heartbeat_count += epoch == self.waiting_epoch

    def decide(self, state: pb.ApprovalState.ValueType, *, was_begun: bool = False, **fields: Any) -> None:
        """Decide on the newest request."""
        asked = self.requests[-1]
        approval = pb.Approval(state=state, **fields)
        if asked.HasField("tool_call"):
            approval.tool_call.CopyFrom(asked.tool_call)
        self.decided[asked.call.SerializeToString(deterministic=True)] = pb.TakeDecisionResponse(
            approval=approval, was_begun=was_begun
        )

    def take(self, request: pb.TakeDecisionRequest) -> pb.TakeDecisionResponse:
        self.taken.append(request)
        key = request.call.SerializeToString(deterministic=True)
        return self.decided.get(key, pb.TakeDecisionResponse())
