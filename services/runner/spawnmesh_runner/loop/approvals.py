"""Approvals of tool calls: which calls need one, the request of one, and what was decided."""

import json
from typing import NoReturn

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1 import approval_pb2
from spawnmesh_client.unfinished_turn import OpenCall
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.mcp.text import truncate
from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import RunParked, ToolRefused
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachment_redaction import redact_files
from spawnmesh_runner.tools.ask_user import ASK_USER
from spawnmesh_runner.tools.calling.call import ToolOutcome, argument_refusal, refusal
from spawnmesh_runner.tools.calling.call_arguments import call_arguments, replace_arguments
from spawnmesh_runner.tools.calling.registry import declaration
from spawnmesh_runner.tools.calling.tool import AnyTool, RemoteTool, json_line
from spawnmesh_runner.tools.publish_files import PUBLISH_FILES
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN

_CANNOT_WAIT = (Reason.SECRET_NOT_KEPT, Reason.INVALID_REQUEST, Reason.RUN_QUEUE_FULL)
"""The session service lets no run wait for a decision on a call with these reasons."""

_MAX_REASON_BYTES = 4096


def approval_reason(assignment: Assignment, tool: AnyTool, of_plugins: str) -> str:
    """Return why a person must approve a call of the tool: what the agent's policy says, and what
    plugins say. Empty if neither wants it, and for a question, which asks a person anyway.
    """
    if tool.name == ASK_USER.name:
        return ""
    reasons = filter(None, (_policy_reason(assignment, tool), of_plugins))
    return truncate("; ".join(reasons), _MAX_REASON_BYTES)[0]


def _policy_reason(assignment: Assignment, tool: AnyTool) -> str:
    policy = assignment.claimed.agent.approval
    for pattern in policy.tools:
        if tool.name == pattern or (pattern.endswith("*") and tool.name.startswith(pattern[:-1])):
            return f"the agent's policy names {pattern}"
    if policy.destructive_mcp_tools and isinstance(tool, RemoteTool) and tool.is_destructive:
        return "the tool may change or delete something, and the agent's policy names such tools"
    return ""


async def ask_for_approval(
    assignment: Assignment, open_call: OpenCall, tool: AnyTool, call: message_pb2.ToolCall, reason: str
) -> ToolOutcome:
    """Let a person decide on the call, which plugins may have changed.

    Raises RunParked: a later runner makes the call. Returns the refusal of a call that would be
    refused after the approval too, or that cannot be kept until then.
    """
    if (refused := argument_refusal(tool, call)) is not None:
        return refused
    arguments = call_arguments(call)
    if redact_files(call.name, arguments) != arguments:
        return refusal(
            "APPROVAL_NOT_POSSIBLE",
            "a person must approve this call, and the content of a file is not kept until then; hand"
            " nothing over by content",
        )
    if tool.name == SESSIONS_SPAWN.name and _hands_over_lost_files(assignment, arguments):
        return refusal(
            "APPROVAL_NOT_POSSIBLE",
            "a person must approve this call, and files of the workspace are not kept until then; hand"
            " nothing over by path: attach published files by set_id, or put what matters into the task",
        )
    if tool.name == PUBLISH_FILES.name:
        return refusal(
            "APPROVAL_NOT_POSSIBLE",
            "a person must approve this call, and files of the workspace are not kept until then; give what"
            " matters in your answer, and say that publish_files needs an approval here",
        )
    subject = approval_pb2.ToolCallSubject(
        tool_name=tool.name,
        arguments_json=json_line(arguments) if isinstance(arguments, dict) else json.dumps(arguments),
        parameters_json=declaration(tool).parameters_json,
    )
    request = approval_pb2.RequestApprovalRequest(tool_call=subject, reason=reason)
    try:
        await park(assignment, open_call, request)
    except MeshError as error:
        if not refused_with(error, *_CANNOT_WAIT):
            raise
        return refusal(
            "APPROVAL_NOT_POSSIBLE", f"a person must approve this call, and it cannot wait: {error.message}"
        )


def _hands_over_lost_files(assignment: Assignment, arguments: object) -> bool:
    """Return whether a spawn hands over a file of the workspace that the next runner has not got.

    The files of the session's receipt are there again.
    """
    kept = assignment.claimed.session.receipt.rel_dir
    paths = [file.path for file in SESSIONS_SPAWN.parse(arguments).attachments if file.path]
    return any(not kept or not path.startswith(f"{kept}/") for path in paths)


async def park(
    assignment: Assignment, open_call: OpenCall, request: approval_pb2.RequestApprovalRequest
) -> NoReturn:
    """Give the run up until a person has decided. Raises RunParked, or the refusal as MeshError."""
    policy = assignment.claimed.agent.approval
    request.epoch = assignment.epoch
    request.call.CopyFrom(_key(open_call))
    request.on_expiry = policy.on_expiry
    if policy.HasField("timeout"):
        request.timeout.CopyFrom(policy.timeout)
    peers = assignment.peers
    await assignment.run_events.reported()
    assignment.handover.begin()
    try:
        answer = await call_with_retry(peers.session, peers.runs.RequestApproval, request)
    except MeshError:
        assignment.handover.fail()
        raise
    approval_id = answer.approval.approval_id
    why = "the run waits for a person" if approval_id else "the run was interrupted"
    raise RunParked(why, approval_id=approval_id)


async def ask_person(
    assignment: Assignment, open_call: OpenCall, question: approval_pb2.Question
) -> NoReturn:
    """Ask a person the question of the call. Raises RunParked, or the refusal as MeshError."""
    await park(assignment, open_call, approval_pb2.RequestApprovalRequest(question=question))


async def take_decision(assignment: Assignment, call: OpenCall) -> approval_pb2.TakeDecisionResponse | None:
    """Return what was decided on an open call; None if no approval of it was requested.

    An approved call is begun by this runner from then on.
    """
    if not assignment.claimed.approval_count:
        return None
    request = approval_pb2.TakeDecisionRequest(epoch=assignment.epoch, call=_key(call))
    peers = assignment.peers
    taken = await call_with_retry(peers.session, peers.runs.TakeDecision, request)
    return taken if taken.HasField("approval") else None


def outcome_of(taken: approval_pb2.TakeDecisionResponse) -> ToolOutcome | None:
    """Return the outcome of a call that is not made after the decision; None for one to be made."""
    approval = taken.approval
    if approval.state == approval_pb2.APPROVAL_STATE_APPROVED:
        return None
    if approval.state == approval_pb2.APPROVAL_STATE_ANSWERED:
        return ToolOutcome(approval.text)
    if approval.state == approval_pb2.APPROVAL_STATE_DENIED:
        return refusal("DENIED", approval.text or "a person denied it and gave no reason")
    if approval.state == approval_pb2.APPROVAL_STATE_EXPIRED:
        return refusal("DENIED", "no person decided in time")
    return refusal("INTERRUPTED", "you were interrupted while this waited for a person; it was not done")


def approved_call(call: message_pb2.ToolCall, approval: approval_pb2.Approval) -> message_pb2.ToolCall:
    """Return the call with exactly the arguments that were approved."""
    approved = json.loads(approval.edited_arguments_json or approval.tool_call.arguments_json)
    try:
        asked = json.dumps(call_arguments(call), sort_keys=True)
    except ToolRefused:  # The context left a long text of the call out.
        asked = ""
    # In Python, 1 and 1.0 and True are equal. Their texts differ.
    if json.dumps(approved, sort_keys=True) == asked:
        return call
    return replace_arguments(call, approved, approvedBy=approval.decided_by)


def _key(call: OpenCall) -> approval_pb2.CallKey:
    return approval_pb2.CallKey(answer_entry_id=call.answer_entry_id, index=call.index)
