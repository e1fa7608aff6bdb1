"""The tool calls of an answer: each run and its result stored before the next."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh.content.v1 import message_pb2
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.telemetry import traced

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import OpenCall
from spawnmesh_runner.domain import call_request_id, result_key
from spawnmesh_runner.hooks import judge_call, tell_outcome
from spawnmesh_runner.tools.call import Outcome, is_as_made, refusal, run_call
from spawnmesh_runner.tools.sessions_spawn import SESSIONS_SPAWN
from spawnmesh_runner.tools.tool import Scope
from spawnmesh_runner.tools.unknown_spawn import unknown_spawn
from spawnmesh_runner.transcript import append_message

_NEVER_KEPT = (Reason.ATTACHMENT_CONTENT_IS_MARKER, Reason.INVALID_REQUEST)
"""Of calls that the transcript does not take."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """What came of a call; `made` is the call as it was made where plugins gave it other arguments."""

    outcome: Outcome
    made: message_pb2.ToolCall | None = None


async def run_calls(assignment: Assignment, calls: Iterable[OpenCall]) -> None:
    """Runs the calls in order and appends the result of each. Raises MeshError when the run is lost or the transcript does not take them."""
    for call in calls:
        await _append_result(assignment, call, await _run(assignment, call))


async def finish_calls(assignment: Assignment, calls: Iterable[OpenCall]) -> None:
    """As `run_calls`, for calls that another runner had begun: one that may not or cannot be made again gets an unknown outcome instead."""
    for call in calls:
        unknown = await _unknown_outcome(assignment, call)
        answered = await _run(assignment, call) if unknown is None else await _not_run(assignment, call, unknown)
        await _append_result(assignment, call, answered)


async def _unknown_outcome(assignment: Assignment, open_call: OpenCall) -> Outcome | None:
    """What is told of a call that is not made again; None of one that is."""
    call = open_call.call
    if not assignment.may_repeat(call.name):
        return refusal("OUTCOME_UNKNOWN", "the runner was replaced during the call; it may or may not have been done")
    if call.name not in assignment.tools:
        return None
    if call.name == SESSIONS_SPAWN.name:
        return await unknown_spawn(_scope(assignment, open_call), call)
    if is_as_made(call):
        return None
    return refusal(
        "OUTCOME_UNKNOWN",
        "the runner was replaced during the call, and the secret in this call, or the file, is gone with it; it may or may not have been done."
        " Where it was not, make the call anew, with what belongs in the place of the marker",
    )


def _scope(assignment: Assignment, call: OpenCall) -> Scope:
    return Scope(
        workspace=assignment.workspace,
        mesh=assignment.mesh,
        session_id=assignment.session_id,
        answer_entry_id=call.answer_entry_id,
        request_id=call_request_id(call.answer_entry_id, call.index),
    )


async def _run(assignment: Assignment, open_call: OpenCall) -> _Answered:
    call = open_call.call
    tool = assignment.tools.get(call.name)
    if tool is None:
        names = ", ".join(assignment.tools) or "none"
        unknown = refusal("UNKNOWN_TOOL", f"there is no such tool; yours are: {names}")
        return await _not_run(assignment, open_call, unknown)
    async with traced(
        f"execute_tool {tool.name}",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=tool.name,
        gen_ai__tool__call__id=call.tool_call_id,
        gen_ai__tool__type="function",
        gen_ai__conversation__id=assignment.session_id,
    ) as span:
        judged = await judge_call(assignment, call)
        began = monotonic_seconds()
        if not isinstance(judged, Outcome):
            assignment.called.add(tool.name)
        outcome = judged if isinstance(judged, Outcome) else await run_call(tool, judged, _scope(assignment, open_call))
        latency = timedelta(seconds=monotonic_seconds() - began)
        if outcome.error_reason:
            span.set_attribute("error.type", outcome.error_reason)
    await tell_outcome(assignment, open_call, outcome, latency)
    return _Answered(outcome, None if isinstance(judged, Outcome) or judged is call else judged)


async def _not_run(assignment: Assignment, call: OpenCall, outcome: Outcome) -> _Answered:
    """The outcome of a call that this runner does not make; observers of tool calls hear of it all the same."""
    await tell_outcome(assignment, call, outcome, timedelta())
    return _Answered(outcome)


async def _append_result(assignment: Assignment, call: OpenCall, answered: _Answered) -> None:
    message = message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT,
        content=[message_pb2.ContentBlock(text=message_pb2.Text(text=answered.outcome.text))],
        tool_call_id=call.call.tool_call_id,
        tool_name=call.call.name,
        is_error=bool(answered.outcome.error_reason),
    )
    if answered.made is not None:
        message.content.add(tool_call=answered.made)
    key = result_key(call.answer_entry_id, call.index)
    try:
        await append_message(assignment, key, message)
    except MeshError as error:
        if answered.made is None or error.reason not in _NEVER_KEPT:
            raise
        # The model reads its own call instead, and what came of that which plugins made of it.
        del message.content[-1]
        await append_message(assignment, key, message)
