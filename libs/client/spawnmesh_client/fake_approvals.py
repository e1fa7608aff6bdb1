"""The approvals of a FakeMesh, with the refusals of a mesh."""

import hashlib
import json

from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as rpc
from spawnmesh_core.errors import MeshError, invalid
from spawnmesh_core.reasons import Reason

from spawnmesh_client.fake_records import SessionRecord

_SUBJECT = "fake"
"""The subject of the token of a FakeMesh."""
_STATE = "APPROVAL_STATE_"


def tool_call(tool_name: str, arguments: object) -> pb.ToolCallSubject:
    """Return the call of a tool. Raises ValueError for arguments that are no JSON."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return pb.ToolCallSubject(
        tool_name=tool_name,
        arguments_json=text,
        arguments_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def is_wanted(approval: pb.Approval, request: rpc.ListApprovalsRequest) -> bool:
    """Return whether the approval fulfils the conditions of a list, except that for sessions."""
    return (
        request.state in (pb.APPROVAL_STATE_UNSPECIFIED, approval.state)
        and request.agent_id in ("", approval.agent_id)
        and request.tool_name in ("", approval.tool_call.tool_name)
    )


def decide(record: SessionRecord, approval: pb.Approval, request: rpc.DecideApprovalRequest) -> None:
    """Decide on an approval of the session, and queue its run. A repeat changes nothing.

    Raises APPROVAL_CLOSED, and INVALID_REQUEST for a decision that does not fit. Edited arguments
    are not compared with a schema.
    """
    decision = _decision(approval, request)
    if approval.state == pb.APPROVAL_STATE_PENDING:
        record.resume(decision.state)
        approval.MergeFrom(decision)
        if approval.state == pb.APPROVAL_STATE_ANSWERED:
            record.read = approval.text
    elif not _has(approval, decision):
        raise _closed(approval)


def _decision(approval: pb.Approval, request: rpc.DecideApprovalRequest) -> pb.Approval:
    """Return the fields that the decision sets. Raises INVALID_REQUEST."""
    is_question = approval.HasField("question")
    match request.WhichOneof("decision"):
        case "approve":
            if is_question:
                raise invalid("approve", "this approval is a question: answer it, or deny it")
            edited = _checked_arguments(request.approve.arguments_json)
            return _fields(pb.APPROVAL_STATE_APPROVED, edited=edited)
        case "answer":
            if not is_question:
                raise invalid("answer", "this approval is a call of a tool: approve it, or deny it")
            choices = approval.question.choices
            if choices and request.answer.text not in choices:
                raise invalid("answer.text", f"is none of the choices: {', '.join(map(repr, choices))}")
            return _fields(pb.APPROVAL_STATE_ANSWERED, text=request.answer.text)
        case _:
            return _fields(pb.APPROVAL_STATE_DENIED, text=request.deny.reason)


def _fields(state: "pb.ApprovalState.ValueType", *, text: str = "", edited: str = "") -> pb.Approval:
    return pb.Approval(state=state, decided_by=_SUBJECT, text=text, edited_arguments_json=edited)


def _checked_arguments(text: str) -> str:
    if not text:
        return text
    field = "approve.arguments_json"
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(field, "is not JSON") from None
    if not isinstance(arguments, dict):
        raise invalid(field, "is not a JSON object")
    return text


def _has(approval: pb.Approval, decision: pb.Approval) -> bool:
    fields = ("state", "decided_by", "edited_arguments_json", "text")
    return all(getattr(approval, name) == getattr(decision, name) for name in fields)


def _closed(approval: pb.Approval) -> MeshError:
    state = pb.ApprovalState.Name(approval.state).removeprefix(_STATE)
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    return MeshError(
        Reason.APPROVAL_CLOSED,
        f"approval {approval.approval_id} is {state}{by} already; the decision was not taken",
        facts={"approval_id": approval.approval_id, "state": state, "decided_by": approval.decided_by},
    )
