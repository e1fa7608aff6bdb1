"""Hooks of a run: dispatch prompts, models and tool calls to plugins; publish events."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spawnmesh.content.v1 import message_pb2
from spawnmesh.hook.v1 import event_pb2, run_hook_service_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh_client.run_events import approval_by, decided_call
from spawnmesh_client.run_hooks import DISPATCH_SECONDS, RunHooks
from spawnmesh_client.unfinished_turn import OpenCall
from spawnmesh_core.errors import MeshError, is_transient
from spawnmesh_core.reasons import Reason

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachment_redaction import redact_files, restore_files
from spawnmesh_runner.tools.calling.call import BLOCKED, ToolOutcome, refusal
from spawnmesh_runner.tools.calling.call_arguments import call_arguments, replace_arguments

_MAX_ARGUMENTS_BYTES = 1024 * 1024  # Of the contract: no gate is shown more.


async def refresh_active_hooks(assignment: Assignment) -> None:
    """List the hooks that have a subscriber.

    The others are not dispatched until the next refresh.
    """
    await run_hooks(assignment).refresh()


async def dispatch_prompt_hooks(assignment: Assignment, request: router_pb.GenerateRequest) -> None:
    """Apply the plugins' changes to the request and publish it to observers.

    Raises MeshError PLUGIN_FAILED.
    """
    await run_hooks(assignment).change_request(request)


async def publish_llm_output(assignment: Assignment, completion: generation_pb2.Completion) -> None:
    """Publish the model's answer to observers."""
    await run_hooks(assignment).publish_answer(completion)


def run_hooks(assignment: Assignment) -> RunHooks:
    """Return the hooks of the run, whose decisions its watchers see."""
    peers = assignment.peers

    async def call(rpc: str, request: Any, *, timeout_seconds: float) -> Any:
        stub: Any = peers.hooks if rpc == "PublishEvents" else peers.run_hooks
        return await call_with_retry(peers.hook, getattr(stub, rpc), request, timeout_seconds=timeout_seconds)

    agent_id = assignment.claimed.agent.agent_id
    return RunHooks(
        assignment.session_id,
        assignment.run_id,
        agent_id,
        call,
        assignment.active_hooks,
        assignment.run_events.add_turn_decision,
    )


@dataclass(frozen=True, slots=True)
class AllowedCall:
    """A call as the plugins allow it.

    With an `approval_reason`, a person must approve it: the plugins in `approval_by` want that.
    """

    call: message_pb2.ToolCall
    approval_reason: str = ""
    approval_by: tuple[str, ...] = ()


async def dispatch_before_tool_call(
    assignment: Assignment, call: message_pb2.ToolCall
) -> AllowedCall | ToolOutcome:
    """Return the call as the plugins allow it, or the outcome of a blocked call.

    A rewritten call names the plugins in `rewrittenBy`. Raises PLUGIN_FAILED if the run is to wait
    for a plugin that gives no answer.
    """
    if event_pb2.HOOK_KIND_BEFORE_TOOL_CALL not in assignment.active_hooks:
        return AllowedCall(call)
    try:
        arguments = call_arguments(call)
        redacted = redact_files(call.name, arguments)
        arguments_json = json.dumps(redacted)
    except ToolRefused as error:
        return ToolOutcome(str(error), error.reason)
    except RecursionError:
        return refusal("INVALID_ARGUMENTS", "the arguments are nested too deep")
    if len(arguments_json) > _MAX_ARGUMENTS_BYTES:
        return refusal(
            "INVALID_ARGUMENTS",
            f"the arguments have more than {_MAX_ARGUMENTS_BYTES} bytes as JSON, and a plugin that has to"
            " allow the call reads no more",
        )
    event = event_pb2.BeforeToolCallEvent(
        session_id=assignment.session_id,
        run_id=assignment.run_id,
        agent_id=assignment.claimed.agent.agent_id,
        tool_name=call.name,
        tool_call_id=call.tool_call_id,
        arguments_json=arguments_json,
    )
    peers = assignment.peers
    request = run_hook_service_pb2.DispatchBeforeToolCallRequest(event=event)
    try:
        answer = await call_with_retry(
            peers.hook, peers.run_hooks.DispatchBeforeToolCall, request, timeout_seconds=DISPATCH_SECONDS
        )
    except MeshError as error:
        if error.reason is not Reason.PLUGIN_FAILED or is_transient(error):
            raise
        return refusal(error.reason.value, error.message)
    report = assignment.run_events.add_decision
    if answer.decision.HasField("block"):
        report(answer.decided_by, blocked_call=decided_call(call.name))
        return refusal(BLOCKED, answer.decision.block.reason)
    wanted_by = approval_by(answer)
    if not answer.decision.HasField("rewrite"):
        return AllowedCall(call, answer.approval_reason, wanted_by)
    try:
        rewritten = restore_files(json.loads(answer.decision.rewrite.arguments_json), arguments, redacted)
        if rewritten != arguments:
            call = replace_arguments(call, rewritten, rewrittenBy=list(answer.rewritten_by))
            report(answer.rewritten_by, rewritten_call=decided_call(call.name))
        return AllowedCall(call, answer.approval_reason, wanted_by)
    except (ValueError, TypeError, RecursionError):
        plugins = ", ".join(answer.rewritten_by)
        return refusal(
            Reason.PLUGIN_FAILED.value, f"the arguments that {plugins} gave the call cannot be read"
        )


async def publish_tool_outcome(
    assignment: Assignment, call: OpenCall, outcome: ToolOutcome, latency: timedelta
) -> None:
    """Publish the outcome of a tool call to observers.

    The event key is the same on every runner that makes the call.
    """
    await run_hooks(assignment).publish_outcome(call, outcome.whole_text, outcome.error_reason, latency)
