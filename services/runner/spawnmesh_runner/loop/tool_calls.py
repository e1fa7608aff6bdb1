"""The tool calls of an answer: each call is made and its result stored before the next call."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from spawnmesh.content.v1 import message_pb2
from spawnmesh.session.v1.approval_pb2 import APPROVAL_STATE_WITHDRAWN, TakeDecisionResponse
from spawnmesh_client.run_events import decided_call
from spawnmesh_client.unfinished_turn import OpenCall
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.telemetry import mark_failed, traced

from spawnmesh_runner.domain.request_ids import call_request_id, result_request_id
from spawnmesh_runner.domain.tools import RunParked, TurnInterrupted
from spawnmesh_runner.loop.approvals import (
    approval_reason,
    approved_call,
    ask_for_approval,
    ask_person,
    outcome_of,
    take_decision,
)
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.budget import await_budget
from spawnmesh_runner.loop.call_content import record_arguments, record_result
from spawnmesh_runner.loop.hooks import dispatch_before_tool_call, publish_tool_outcome
from spawnmesh_runner.loop.parked_span import note_parked
from spawnmesh_runner.loop.transcript_appends import append_message
from spawnmesh_runner.tools.ask_user import ASK_USER
from spawnmesh_runner.tools.calling.call import ToolOutcome, execute_call, refusal
from spawnmesh_runner.tools.calling.call_arguments import is_unredacted
from spawnmesh_runner.tools.calling.interrupted_spawn import interrupted_spawn_outcome
from spawnmesh_runner.tools.calling.tool import AnyTool, CallScope
from spawnmesh_runner.tools.publish_files import PUBLISH_FILES
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN
from spawnmesh_runner.tools.sessions_wait import SESSIONS_WAIT

_NOT_MADE = refusal("INTERRUPTED", "you were interrupted before this call, and it was not made")
_CUT_SHORT = refusal(
    "INTERRUPTED", "you were interrupted during this call; make it again if it is still needed"
)
_MAYBE_DONE = refusal(
    "INTERRUPTED", "you were interrupted during this call, and it may or may not have been done"
)

_APPROVED_UNKNOWN = refusal(
    "OUTCOME_UNKNOWN",
    "a person approved this call, and the runner was replaced during it: it may or may not have been done,"
    " and it is not made again",
)

_CUT_BY_THEMSELVES = (SESSIONS_SPAWN.name, SESSIONS_WAIT.name, PUBLISH_FILES.name, ASK_USER.name)
"""The tools that an interrupt does not cancel."""

_NEVER_KEPT = (Reason.ATTACHMENT_CONTENT_IS_MARKER, Reason.INVALID_REQUEST)
"""The transcript refuses rewritten calls with these reasons."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outcome of a call. `made` is the call as it was made if plugins rewrote it."""

    outcome: ToolOutcome
    made: message_pb2.ToolCall | None = None


async def run_calls(assignment: Assignment, calls: Sequence[OpenCall]) -> None:
    """Make the calls in order and append the result of each.

    After an interrupt, the results say which calls were cut short and which were not made. Raises
    TurnInterrupted then, RunParked when a person must decide before the next call or a budget that
    the run shares has no room, MeshError when the run is lost or the transcript refuses a result,
    and NoProgress when the run has made the same calls with the same results too often in a row.
    """
    digest = hashlib.sha256()
    for call in calls:
        answer = await _execute(assignment, call)
        await _append_result(assignment, call, answer)
        for part in (call.call.name, _block_without_id(call.call), answer.outcome.whole_text):
            digest.update(hashlib.sha256(part.encode()).digest())
    if assignment.interruption.is_turn_over:
        raise TurnInterrupted
    assignment.repeated_calls.record(digest.hexdigest(), (call.call.name for call in calls))


def _block_without_id(call: message_pb2.ToolCall) -> str:
    """Return the block of a call without the call's id, which differs from turn to turn."""
    return call.block_json.replace(call.tool_call_id, "")


async def finish_calls(assignment: Assignment, calls: Iterable[OpenCall]) -> None:
    """Make the calls that another runner left open, as `run_calls` does.

    A call that must not or cannot be repeated gets an unknown outcome instead. Only the first call
    can have been begun: a result is stored before the next call is made. Behind a call whose
    approval was withdrawn none is made: a person wants something else.
    """
    is_withdrawn = False
    for number, call in enumerate(calls):
        taken = await take_decision(assignment, call)
        if taken is not None:
            answer = await _finish_decided(assignment, call, taken)
            is_withdrawn = is_withdrawn or taken.approval.state == APPROVAL_STATE_WITHDRAWN
        elif is_withdrawn:
            answer = await _not_run(assignment, call, _NOT_MADE)
        else:
            answer = await _finish_undecided(assignment, call, was_begun=number == 0)
        await _append_result(assignment, call, answer)


async def _finish_undecided(assignment: Assignment, call: OpenCall, *, was_begun: bool) -> _Answer:
    """Make a call of which no approval was requested, unless it may have been made."""
    unknown = await _unknown_outcome(assignment, call, was_begun=was_begun)
    if unknown is not None:
        return await _not_run(assignment, call, unknown)
    return await _execute(assignment, call, was_begun=was_begun)


async def _finish_decided(assignment: Assignment, call: OpenCall, taken: TakeDecisionResponse) -> _Answer:
    """Make a call as it was approved, at most once; no plugin is asked again."""
    if (outcome := outcome_of(taken)) is not None:
        return await _not_run(assignment, call, outcome)
    if taken.was_begun and call.call.name != SESSIONS_SPAWN.name:  # A spawn has no second effect.
        return await _not_run(assignment, call, _APPROVED_UNKNOWN)
    return await _execute(assignment, call, approved=approved_call(call.call, taken.approval))


async def _unknown_outcome(
    assignment: Assignment, open_call: OpenCall, *, was_begun: bool
) -> ToolOutcome | None:
    """Return the outcome of a call that is not made now; None if it is made."""
    call = open_call.call
    may_be_made = assignment.may_repeat(call.name) or (not was_begun and call.name in assignment.tools)
    if not may_be_made:
        return refusal(
            "OUTCOME_UNKNOWN", "the runner was replaced during the call; it may or may not have been done"
        )
    if call.name not in assignment.tools:
        return None
    if call.name == SESSIONS_SPAWN.name:
        scope = _scope(assignment, open_call, was_begun=was_begun)
        return await interrupted_spawn_outcome(scope, call)
    if is_unredacted(call):
        return None
    return refusal(
        "OUTCOME_UNKNOWN",
        "the runner was replaced during the call, and the secret or the file in this call is lost with it;"
        " the call may or may not have been done. If it was not, make it again,"
        " with the secret or the file in place of the marker",
    )


def _scope(assignment: Assignment, call: OpenCall, *, was_begun: bool) -> CallScope:
    return CallScope(
        workspace=assignment.workspace,
        max_workspace_bytes=assignment.max_workspace_bytes,
        peers=assignment.peers,
        session_id=assignment.session_id,
        epoch=assignment.epoch,
        had_earlier_runner=assignment.has_predecessors,
        was_begun=was_begun,
        answer_entry_id=call.answer_entry_id,
        request_id=call_request_id(call.answer_entry_id, call.index),
        ask=partial(ask_person, assignment, call),
        cut_turn=assignment.interruption.cut_turn,
        budget_session_ids=assignment.claimed.session.budget_session_ids,
        await_budget=partial(await_budget, assignment),
    )


async def _execute(
    assignment: Assignment,
    open_call: OpenCall,
    *,
    was_begun: bool = False,
    approved: message_pb2.ToolCall | None = None,
) -> _Answer:
    """Make the call after the plugins have allowed it, or as a person `approved` it.

    Raises RunParked for a call that a person must approve.
    """
    call = open_call.call
    tool = assignment.tools.get(call.name)
    if tool is None:
        names = ", ".join(assignment.tools) or "none"
        unknown = refusal("UNKNOWN_TOOL", f"there is no such tool; yours are: {names}")
        return await _not_run(assignment, open_call, unknown)
    parked: RunParked | None = None
    async with traced(
        f"execute_tool {tool.name}",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=tool.name,
        gen_ai__tool__call__id=call.tool_call_id,
        gen_ai__tool__type="function",
        gen_ai__conversation__id=assignment.session_id,
    ) as span:
        try:
            interrupted = _cut_short(tool) if was_begun else _NOT_MADE
            judged = approved or await _judge(assignment, open_call, tool, interrupted)
            made = call if isinstance(judged, ToolOutcome) else judged
            await record_arguments(span, assignment.span_content, made)
            start_seconds = monotonic_seconds()
            scope = _scope(assignment, open_call, was_begun=was_begun)
            outcome = await _outcome_of(assignment, tool, judged, scope)
            latency = timedelta(seconds=monotonic_seconds() - start_seconds)
            await record_result(span, assignment.span_content, outcome.whole_text)
            if outcome.error_reason:
                mark_failed(span, outcome.error_reason)
        except RunParked as error:  # This is no error of the span.
            note_parked(span, error)
            parked = error
    if parked is not None:
        raise parked
    await publish_tool_outcome(assignment, open_call, outcome, latency)
    return _Answer(outcome, None if made is call else made)


async def _outcome_of(
    assignment: Assignment, tool: AnyTool, judged: message_pb2.ToolCall | ToolOutcome, scope: CallScope
) -> ToolOutcome:
    if isinstance(judged, ToolOutcome):
        return judged
    assignment.called_tools.add(tool.name)
    return await _make(assignment, tool, judged, scope)


async def _judge(
    assignment: Assignment, open_call: OpenCall, tool: AnyTool, interrupted: ToolOutcome
) -> message_pb2.ToolCall | ToolOutcome:
    """Return the call as the plugins allow it, or the outcome of one that is not made.

    Raises RunParked for a call that a person must approve.
    """
    try:
        allowed = await assignment.interruption.cut_turn(
            dispatch_before_tool_call(assignment, open_call.call)
        )
    except TurnInterrupted:
        return interrupted
    if isinstance(allowed, ToolOutcome):
        return allowed
    if reason := approval_reason(assignment, tool, allowed.approval_reason):
        assignment.run_events.add_decision(allowed.approval_by, call_to_approve=decided_call(tool.name))
        return await ask_for_approval(assignment, open_call, tool, allowed.call, reason)
    return allowed.call


async def _make(
    assignment: Assignment, tool: AnyTool, call: message_pb2.ToolCall, scope: CallScope
) -> ToolOutcome:
    """Make the call, and cut it short at an interrupt.

    A spawn is waited for: it is soon over, and the model should know of the child. So are a
    publication and a wait for children, which cut their long parts short themselves. And so is a
    question: the run is soon given up.
    """
    making = execute_call(tool, call, scope)
    try:
        if tool.name in _CUT_BY_THEMSELVES:
            return await making
        return await assignment.interruption.cut_turn(making)
    except TurnInterrupted:
        return _cut_short(tool)


def _cut_short(tool: AnyTool) -> ToolOutcome:
    return _CUT_SHORT if tool.idempotent else _MAYBE_DONE


async def _not_run(assignment: Assignment, call: OpenCall, outcome: ToolOutcome) -> _Answer:
    """Return the outcome of a call that this runner does not make, and publish it to observers."""
    await publish_tool_outcome(assignment, call, outcome, timedelta())
    return _Answer(outcome)


async def _append_result(assignment: Assignment, call: OpenCall, answer: _Answer) -> None:
    message = message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT,
        content=[
            message_pb2.ContentBlock(text=message_pb2.Text(text=text)) for text in answer.outcome.blocks
        ],
        tool_call_id=call.call.tool_call_id,
        tool_name=call.call.name,
        is_error=bool(answer.outcome.error_reason),
    )
    if answer.made is not None:
        message.content.add(tool_call=answer.made)
    key = result_request_id(call.answer_entry_id, call.index)
    try:
        await append_message(assignment, key, message)
    except MeshError as error:
        if answer.made is None or error.reason not in _NEVER_KEPT:
            raise
        # The model then reads its own call, with the outcome of the rewritten one.
        del message.content[-1]
        await append_message(assignment, key, message)
