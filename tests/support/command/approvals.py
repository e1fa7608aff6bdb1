"""Approvals of a session service in the test's own process."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.session.v1 import approval_pb2, session_pb2
from spawnmesh.session.v1 import approval_service_pb2 as rpc
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceServicer
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id


@dataclass
class FakeApprovals(ApprovalServiceServicer):
    """Record the requests. No page of a list has more than `page_limit` approvals.

    `refusal` answers decisions.
    """

    known: list[approval_pb2.Approval] = field(default_factory=list)
    page_limit: int = 2
    requests: list[Any] = field(default_factory=list)
    refusal: MeshError | None = None

    async def ListApprovals(self, request: Any, context: Any) -> Any:
        copy = rpc.ListApprovalsRequest()
        copy.CopyFrom(request)
        self.requests.append(copy)
        start = int(request.page_token or 0)
        end = start + min(request.page_size or 50, self.page_limit)
        more = str(end) if end < len(self.known) else ""
        return rpc.ListApprovalsResponse(approvals=self.known[start:end], next_page_token=more)

    async def GetApproval(self, request: Any, context: Any) -> Any:
        return rpc.GetApprovalResponse(approval=self._found(request.approval_id))

    async def DecideApproval(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        approval = self._found(request.approval_id)
        approval.state = {
            "approve": approval_pb2.APPROVAL_STATE_APPROVED,
            "deny": approval_pb2.APPROVAL_STATE_DENIED,
            "answer": approval_pb2.APPROVAL_STATE_ANSWERED,
        }[request.WhichOneof("decision")]
        run = session_pb2.Run(run_id=approval.run_id, state=session_pb2.RUN_STATE_QUEUED)
        return rpc.DecideApprovalResponse(approval=approval, run=run)

    def _found(self, approval_id: str) -> approval_pb2.Approval:
        for approval in self.known:
            if approval.approval_id == approval_id:
                return approval
        raise not_found("approval", approval_id)


def pending(**fields: Any) -> approval_pb2.Approval:
    """Return an approval that a person has three more hours to decide."""
    return approval_pb2.Approval(
        approval_id=new_id(IdKind.APPROVAL),
        session_id=new_id(IdKind.SESSION),
        run_id=new_id(IdKind.RUN),
        agent_id="clerk",
        state=approval_pb2.APPROVAL_STATE_PENDING,
        on_expiry=approval_pb2.EXPIRY_POLICY_DENY,
        create_time=_stamp(timedelta()),
        expire_time=_stamp(timedelta(hours=3, minutes=30)),
        **fields,
    )


def mail(arguments_json: str = '{"to": "ada@example.com"}', **fields: Any) -> approval_pb2.Approval:
    """Return a pending approval of a call of `send_mail`."""
    call = approval_pb2.ToolCallSubject(
        tool_name="send_mail", arguments_json=arguments_json, parameters_json='{"type": "object"}'
    )
    return pending(tool_call=call, **fields)


def question(text: str, *choices: str) -> approval_pb2.Approval:
    """Return a pending question."""
    return pending(question=approval_pb2.Question(text=text, choices=choices))


def _stamp(after: timedelta) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(utc_now() + after)
    return stamp
