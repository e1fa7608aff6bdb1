"""Messages of approvals: parsed from requests, and rendered into responses."""

from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1.approval_pb2 import CallKey
from spawnmesh_calls.wire_times import timestamp_of

from spawnmesh_session.domain.approvals import (
    Approval,
    ApprovalSubject,
    ExpiryPolicy,
    approval_id_of,
)
from spawnmesh_session.rpc.messages import parse_enum, parse_text

_POLICY = "EXPIRY_POLICY_"
_STATE = "APPROVAL_STATE_"


def parse_call(run_id: str, call: CallKey) -> str:
    """Return the id of the approval of a call of the run."""
    return approval_id_of(run_id, call.answer_entry_id, call.index)


def parse_tool_call(tool_call: pb.ToolCallSubject) -> ApprovalSubject:
    """Return the call."""
    return ApprovalSubject(
        tool_name=parse_text("tool_call.tool_name", tool_call.tool_name),
        arguments_json=parse_text("tool_call.arguments_json", tool_call.arguments_json),
        parameters_json=parse_text("tool_call.parameters_json", tool_call.parameters_json),
    )


def parse_question(question: pb.Question) -> ApprovalSubject:
    """Return the question."""
    return ApprovalSubject(
        question=parse_text("question.text", question.text),
        choices=tuple(parse_text("question.choices", choice) for choice in question.choices),
    )


def parse_policy(policy: int) -> ExpiryPolicy:
    """Return the policy; DENY if none was chosen."""
    return ExpiryPolicy(parse_enum(pb.ExpiryPolicy, policy, _POLICY)) if policy else ExpiryPolicy.DENY


def parse_state(state: int) -> str:
    """Return the state; empty if none was chosen."""
    return parse_enum(pb.ApprovalState, state, _STATE) if state else ""


def render_approval(approval: Approval) -> pb.Approval:
    """Render an approval."""
    subject = approval.subject
    rendered = pb.Approval(
        approval_id=approval.approval_id,
        session_id=approval.session_id,
        run_id=approval.run_id,
        agent_id=approval.agent_id,
        state=pb.ApprovalState.Value(f"{_STATE}{approval.state}"),
        reason=approval.reason,
        create_time=timestamp_of(approval.create_time),
        expire_time=timestamp_of(approval.expire_time),
        escalate_time=timestamp_of(approval.escalate_time),
        on_expiry=pb.ExpiryPolicy.Value(f"{_POLICY}{approval.on_expiry}"),
        decide_time=timestamp_of(approval.decide_time),
        decided_by=approval.decided_by,
        edited_arguments_json=approval.edited_arguments_json,
        text=approval.text,
        begin_time=timestamp_of(approval.begin_time),
    )
    if subject.tool_name:
        rendered.tool_call.CopyFrom(
            pb.ToolCallSubject(
                tool_name=subject.tool_name,
                arguments_json=subject.arguments_json,
                arguments_sha256=subject.arguments_sha256,
                parameters_json=subject.parameters_json,
            )
        )
    else:
        rendered.question.CopyFrom(pb.Question(text=subject.question, choices=subject.choices))
    return rendered
